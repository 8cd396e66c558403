"""What the tests stand on: real servers, a proxy with faults, and the one place that waits."""
