"""An adapter for each queue: how to send, how to work, and where on the server the rest is."""
