"""vLLM in its own process, which verifies the loop's drafts, drafts, or speculates by itself."""
