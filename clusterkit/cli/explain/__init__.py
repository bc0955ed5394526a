"""What a word of clusterkit means: `topics.py` lists who tells of which."""
