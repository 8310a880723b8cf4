"""A rendered repository fills its lookup pools with the profile's documents."""

import yaml
from paths import TOKENIZER
from tokenizers import Tokenizer

from tandem.bls.drafters.prompt_lookup import pools_of
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository

TEXT = "def late_fee(days, members): return days * members * 9 if days > 3 else members - 4"


def test_documents_are_found_in_their_own_pool_only(tmp_path):
    (tmp_path / "documents" / "team-a").mkdir(parents=True)
    (tmp_path / "documents" / "team-a" / "fees.py").write_text(TEXT)
    (tmp_path / "documents" / "team-b.jsonl").write_text('{"text": "one two three four five"}')
    emulated = {"kind": "emulated", "tokenizer": str(TOKENIZER), "language": {"alpha": 0.8}}
    lookup = {"max_pool_tokens": 1000, "pools": "documents"}
    profile = {
        "name": "documents",
        "engines": {"target": emulated},
        "decoding": {"prompt_lookup": lookup},
    }
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(profile))
    planned = deployment.load(tmp_path / "profile.yaml")
    repository.render(planned, tmp_path / "models")
    pools = pools_of(planned.loop_settings(), tmp_path / "models" / "bls_stream" / "1")
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert pools.lookup("team-a", ids[:8], 4).tokens == ids[8:12]
    assert pools.lookup("team-b", ids[:8], 4) is None
    config = (tmp_path / "models" / "bls_stream" / "config.pbtxt").read_text()
    assert "team-a" not in config  # clients may read it
