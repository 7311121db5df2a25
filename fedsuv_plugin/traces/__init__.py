"""Device populations: speed, bandwidth, features, energy, availability, deadlines."""
