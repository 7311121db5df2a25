"""Mathematics that more than one selector uses."""
