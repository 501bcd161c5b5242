"""Products, attention and convolutions for a CPU, in C++."""
