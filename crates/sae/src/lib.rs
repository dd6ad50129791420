//! Sparse autoencoders: formats, training, evaluation, steering.
