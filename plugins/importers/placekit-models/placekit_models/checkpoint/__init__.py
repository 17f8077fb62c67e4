"""Importer `checkpoint`: decoders as inference runtimes run them, from the tensors of their files. No module imports torch."""
