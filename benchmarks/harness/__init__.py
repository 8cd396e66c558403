"""The parts of `queues.py`: a server, processes of each queue in its own environment, and what is measured on them."""
