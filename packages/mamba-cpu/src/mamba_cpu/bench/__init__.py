"""What the kernel is measured against, alone (``timing``) and in a model (``whole_model``)."""
