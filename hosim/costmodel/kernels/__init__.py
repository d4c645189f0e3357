"""How long kernels take by their sizes: one function for each class of kernels, with few constants that are fitted to measured times."""
