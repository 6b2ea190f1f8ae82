"""Ways to keep cached tokens in fewer bits: each codec encodes a block once and decodes it with a bounded error."""
