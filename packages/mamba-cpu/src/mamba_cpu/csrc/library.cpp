// The operators in one unit, since torch's headers take most of the time that a build takes. A namespace
// for each instruction set, so that two builds can be loaded and compared.
#include <torch/library.h>

TORCH_LIBRARY(SCAN_NAMESPACE, m) {}

#include "conv_op.h"
#include "scan_op.h"
#include "ssd_op.h"
