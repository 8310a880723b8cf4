"""An engine that runs GGUF files on llama.cpp."""
