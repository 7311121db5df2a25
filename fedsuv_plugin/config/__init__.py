"""Job files: their keys, the YAML, FedScale's command lines, and smaller scales of a job."""
