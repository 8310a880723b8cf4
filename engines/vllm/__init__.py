"""The vLLM engine, in its own process: verifies the loop's drafts, drafts, or does both itself."""
