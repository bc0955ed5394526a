"""The verbs that look at nodes, hostfiles, fabrics and environments."""
