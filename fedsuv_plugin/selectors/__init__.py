"""The algorithms that choose clients: arrays in, rows out, nothing of FedScale."""
