"""Selectors to compare with: plain ones, and published ones that others are measured by."""
