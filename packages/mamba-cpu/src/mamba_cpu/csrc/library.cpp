// The namespace of the operators; scan_op.cpp and conv_op.cpp add theirs to it. One for each instruction
// set, so that two builds can be loaded and compared.
#include <torch/library.h>

TORCH_LIBRARY(SCAN_NAMESPACE, m) {}
