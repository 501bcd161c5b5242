"""The parts of fleet.py: a simulated fleet of fronts and engine replicas. Everything but `validation` is pure."""
