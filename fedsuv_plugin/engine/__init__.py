"""FedScale subclassed: the only folder that imports it."""
