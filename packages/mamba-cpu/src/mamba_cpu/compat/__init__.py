"""Models of other people's, with the kernel."""
