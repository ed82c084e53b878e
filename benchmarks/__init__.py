"""Measurements, side by side in one run; results are kept in results/."""
