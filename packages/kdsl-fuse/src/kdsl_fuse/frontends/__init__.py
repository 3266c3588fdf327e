"""Ways into the operator graph."""
