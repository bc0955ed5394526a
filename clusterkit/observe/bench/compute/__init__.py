"""How fast the GPUs of a job multiply, and whether their products are right."""
