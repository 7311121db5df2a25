"""Many jobs: grids of them, run over the cores, and what came out."""
