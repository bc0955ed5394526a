"""From the words of a question to its answer and document, for the verb and for Python alike."""
