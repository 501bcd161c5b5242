"""Replicas of an engine on Ray Serve. Ray places, heals and scales them; audio flows over `engines.remote` (ADR 23)."""
