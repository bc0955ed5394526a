"""How far the estimates are from published figures, beside those of others."""
