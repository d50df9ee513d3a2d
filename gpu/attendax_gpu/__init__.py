"""The compiled kernels of ``attendax``, as data: ``attendax.kernels.gpu`` reads them."""
