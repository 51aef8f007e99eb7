"""The Hugging Face Hub: revisions (``refs``), parts of files (``ranges``), whole checkpoints
(``snapshot``); under them ``requests``, bounded and repeated, and ``messages``.
"""
