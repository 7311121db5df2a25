"""A comparison written down: tables, pictures and one page, all from the same `Results`."""
