"""The concepts of a vocabulary: WordNet's categories as directions of g (Park et al. 2024).

``wordnet`` and ``vocabulary`` give ``categories``; these and g give ``directions``, their three
``matrices``, and ``scores``. Arrays in, arrays out.
"""
