"""Reads, checks, fetches and converts model directories."""
