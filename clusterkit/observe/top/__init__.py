"""A live look at nodes: whom to ask, one refresh after the other, and what is shown of it."""
