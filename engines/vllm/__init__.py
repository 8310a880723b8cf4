"""The vLLM engine, in its own process. It verifies the loop's drafts, drafts, or does both."""
