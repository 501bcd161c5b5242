"""How each language reads numbers, units, money, dates and signs."""
