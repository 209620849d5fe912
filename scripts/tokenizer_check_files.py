"""tokenizer.json files for tokenizer_check.py."""
import json

from tokenizers import Tokenizer, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
            r"\s*[\r\n]+|\s+(?!\S)|\s+")
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
MARK = "\u2581"


def letters():
    """The letter of each byte."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b if b in own else next(others)) for b in range(256)]


def added(id_, content, special=True, **flags):
    return {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": not special, "special": special, **flags}


def step(type_, **fields):
    return {"type": type_, **fields}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return step("Split", pattern={kind: pattern}, behavior=behavior, invert=invert)


def replace(pattern, content, kind="String"):
    return step("Replace", pattern={kind: pattern}, content=content)


def byte_level(prefix=False, regex=True):
    return step("ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=regex)


def metaspace(scheme="always", cut=True):
    return step("Metaspace", replacement=MARK, prepend_scheme=scheme, split=cut)


LLAMA_DECODER = sequence("decoders", replace(MARK, " "), step("ByteFallback"), step("Fuse"),
                         step("Strip", content=" ", start=1, stop=0))


def file_of(model, normalizer=None, pre_tokenizer=None, decoder=None, post_processor=None, added_tokens=()):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added_tokens),
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor,
            "decoder": decoder, "model": model}


def trained(prose, size, normalizer=None, pre_tokenizer=None, alphabet=(), prefix=None, suffix=None, unk=None, fallback=False,
            **options):
    """A BPE model that tokenizers trains with these steps."""
    untrained = file_of({"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": prefix,
                         "end_of_word_suffix": suffix, "fuse_unk": False, "byte_fallback": False, "vocab": {}, "merges": []},
                        normalizer, pre_tokenizer)
    tokenizer = Tokenizer.from_str(json.dumps(untrained))
    names = {"continuing_subword_prefix": prefix, "end_of_word_suffix": suffix}
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=list(alphabet), limit_alphabet=300,
                                  max_token_length=20, **{k: v for k, v in names.items() if v})
    tokenizer.train_from_iterator(prose.split("\n\n"), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = model["vocab"]
    extra = ([unk] if unk else []) + ([f"<0x{b:02X}>" for b in range(256)] if fallback else [])
    for text in extra + [a + (suffix or "") for a in alphabet] + [(prefix or "") + a for a in alphabet]:
        vocab.setdefault(text, len(vocab))
    model.update(unk_token=unk, byte_fallback=fallback, **options)
    return model


def around(model, *texts, **flags):
    """Added tokens, with ids behind the vocabulary's."""
    vocab = model["vocab"]
    return [added(vocab.get(text, len(vocab) + i), text, **flags.get(text, {})) for i, text in enumerate(texts)]


def known_files(prose, size):
    files = {}

    def add(name, *, normalizer=None, pre=None, decoder=None, post=None, tokens=("<|endoftext|>",), flags=None, **options):
        model = trained(prose, size, normalizer, pre, **options)
        texts = around(model, *tokens, **(flags or {}))
        files[name] = file_of(model, normalizer, pre, decoder, post(texts) if post else None, texts)

    ascii_, bytes_ = [chr(c) for c in range(0x21, 0x7F)], letters()
    plain = {"decoder": byte_level(), "alphabet": bytes_}
    word = {"<word>": {"special": False, "single_word": True}, "<tool>": {"special": False, "lstrip": True, "rstrip": True}}
    roberta = lambda t: step("RobertaProcessing", sep=[t[1]["content"], t[1]["id"]], cls=[t[0]["content"], t[0]["id"]],
                             trim_offsets=True, add_prefix_space=False)
    opens = lambda t: step("TemplateProcessing", single=[{"SpecialToken": {"id": t[0]["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           pair=[{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           special_tokens={t[0]["content"]: {"id": t[0]["content"], "ids": [t[0]["id"]], "tokens": [t[0]["content"]]}})
    add("gpt2", pre=byte_level(), **plain)
    add("llama3", pre=sequence("pretokenizers", split(LLAMA3), byte_level(regex=False)), post=opens, ignore_merges=True, **plain)
    add("roberta", pre=byte_level(prefix=True), post=roberta, tokens=("<s>", "</s>", "[MASK]", "<word>", "<tool>"),
        flags={"[MASK]": {"lstrip": True}, **word}, **plain)
    add("starcoder", pre=sequence("pretokenizers", step("Digits", individual_digits=True), byte_level()), **plain)
    add("clip", normalizer=sequence("normalizers", step("NFC"), replace(r"\s+", " ", "Regex"), step("Lowercase")),
        pre=sequence("pretokenizers", split(CLIP, "Removed", True), byte_level()), post=roberta, suffix="</w>", unk="<|endoftext|>",
        tokens=("<|startoftext|>", "<|endoftext|>"), **plain)
    add("qwen2", normalizer=step("NFC"), pre=sequence("pretokenizers", split(QWEN2), byte_level(regex=False)), **plain)
    add("gpt_neox", normalizer=step("NFC"), pre=byte_level(), tokens=("<|endoftext|>", "  ", "    "),
        flags={"  ": {"special": False}, "    ": {"special": False}}, **plain)
    for name, pattern in (("gpt4", GPT4), ("o200k", O200K), ("kimi", KIMI)):
        add(name, pre=sequence("pretokenizers", split(pattern, "Removed", True), byte_level(regex=False)), **plain)
    add("bloom", pre=sequence("pretokenizers", split(BLOOM), byte_level(regex=False)), tokens=("<s>", "<unk>", "<word>", "<tool>"), flags=word, **plain)
    add("deepseek", pre=sequence("pretokenizers", split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK),
                                 byte_level(regex=False)), **plain)
    spaced = {"normalizer": sequence("normalizers", step("Prepend", prepend=MARK), replace(" ", MARK)), "decoder": LLAMA_DECODER}
    fallback = {"alphabet": ascii_, "unk": "<unk>", "fallback": True, "fuse_unk": True}
    add("llama", post=opens, tokens=("<s>", "</s>", "<word>"), flags=word, **spaced, **fallback)
    add("gemma", normalizer=replace(" ", MARK), pre=split(" ", "MergedWithPrevious", kind="String"), tokens=("<s>", "<unk>", "\n\n"),
        flags={"\n\n": {"special": False, "normalized": False}},
        decoder=sequence("decoders", replace(MARK, " "), step("ByteFallback"), step("Fuse")), **fallback)
    add("mistral", pre=metaspace("first", False), tokens=("<s>", "</s>", "<tool>"), flags=word, decoder=LLAMA_DECODER, **fallback)
    add("metaspace", pre=metaspace(), decoder=metaspace(), tokens=("<unk>", "<s>"), alphabet=ascii_, unk="<unk>")
    bert = step("BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True)
    add("openai_gpt", normalizer=bert, pre=step("BertPreTokenizer"), decoder=step("BPEDecoder", suffix="</w>"), suffix="</w>", unk="<unk>",
        tokens=("<unk>", "<word>"), flags=word, alphabet=ascii_)
    add("bert_bpe", normalizer=bert, pre=step("BertPreTokenizer"), prefix="##", unk="[UNK]", tokens=("[UNK]", "[CLS]"), alphabet=ascii_,
        post=lambda t: step("BertProcessing", sep=["[UNK]", t[0]["id"]], cls=["[CLS]", t[1]["id"]]))
    add("words", normalizer=sequence("normalizers", step("NFKD"), step("StripAccents"), step("Strip", strip_left=True, strip_right=True)),
        pre=sequence("pretokenizers", step("Whitespace"), step("Punctuation", behavior="Contiguous")), unk="<unk>", tokens=("<unk>",), alphabet=ascii_)
    return files


def visible(normalizer=None, pre=None, added_tokens=()):
    """A file whose ids show every byte and every cut: a token for each byte, another where a piece ends."""
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": "|",
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {text: i for i, text in enumerate(letters() + [a + "|" for a in letters()])}, "merges": []}
    steps = ([pre] if pre else []) + [byte_level(regex=False)]
    return file_of(model, normalizer, sequence("pretokenizers", *steps), byte_level(), None, added_tokens)


def single_steps():
    files = {name: visible(step(name)) for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")}
    for flags in range(16):
        on = [bool(flags >> i & 1) for i in range(4)]
        files[f"BertNormalizer {flags}"] = visible(step("BertNormalizer", clean_text=on[0], handle_chinese_chars=on[1], strip_accents=on[2], lowercase=on[3]))
    for name in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer"):
        files[name] = visible(None, step(name))
    for behavior in BEHAVIORS:
        files["Punctuation " + behavior] = visible(None, step("Punctuation", behavior=behavior))
    for each in (True, False):
        files[f"Digits {each}"] = visible(None, step("Digits", individual_digits=each))
    for pattern in (r"\w+", r"\W", r"\d", r"\D+", r"\s", r"\S+", r"\h", r"\H+", r"\b", r"\B", r"\p{Han}", r"\p{Greek}+", r"[[:punct:]]+", r"[[:alnum:]]+",
                    r"[[:^space:]]+", r"[[:blank:]]", r"[^\W\d_]+", r"[\w&&[^\d]]+", r".", r"(?m).+", r"\p{^Lu}+", r"\P{M}+", r"\p{Letter}+", r"(?i)[k-s]+", r"(?i)s",
                    r"[\p{L}\p{M}]+|\p{N}", r"\R", r"\p{Alpha}+", r"\p{Emoji}", r"[^[:upper:]]+", r"\p{Sc}|\p{Sk}"):
        files["pattern " + pattern] = visible(None, split(pattern))
    return files


ATOMS = ["a", "e", " ", r"\s", r"\S", r"\w", r"\W", r"\d", r"\p{L}", r"\p{N}", r"\p{Lu}", r"\P{L}", "[aeiou]", "[^aeiou]", r"[^\s\p{L}\p{N}]", r"[\r\n]", r"[\w']", r"[a-z&&[^aeiou]]",
         r"[^\W\d_]", "(?:th|he)", "(a|b|the)", r"\n", ".", "'", r"\.", r"[[:alpha:]]", r"\h", r"[,.;!?]", r"\x{e9}", r"\u4e2d", "[\u4e00-\u9fa5]", r"[\p{L}\p{M}]"]
QUANTIFIERS = ["", "", "", "?", "*", "+", "+?", "*?", "??", "++", "?+", "*+", "{2}", "{1,3}", "{2,}", "{,2}", "{1,2}?", "{2}+", "{1,2}+", "{2}?"]
LOOKS = [r"(?!\S)", r"(?=[a-z])", r"(?<=\s)", r"(?<!a)", r"\b", r"\B", "^", "$", r"\A", r"\z", r"\Z"]


def random_pattern(pick):
    branches = []
    for _ in range(pick.randrange(1, 4)):
        branch = ""
        for _ in range(pick.randrange(1, 4)):
            branch += pick.choice(LOOKS) if pick.random() < 0.15 else pick.choice(ATOMS) + pick.choice(QUANTIFIERS)
        if pick.random() < 0.1:
            branch = "(?:" + branch + ")" + pick.choice(["", "+", "?"])
        branches.append(branch)
    pattern = "|".join(branches)
    return "(?i)" + pattern if pick.random() < 0.1 and "Lu" not in pattern else pattern


def random_normalizer(pick):
    kind = pick.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Replace", "Regex", "Prepend", "Strip", "Bert"])
    if kind == "Replace":
        return replace(pick.choice([" ", "e", "the", "``", "\n", "\u00e9"]), pick.choice(["", MARK, "x", "\u00e9e", "  "]))
    if kind == "Regex":
        return replace(random_pattern(pick), pick.choice(["", " ", "-", MARK]), "Regex")
    if kind == "Prepend":
        return step("Prepend", prepend=pick.choice([MARK, " ", "ab"]))
    if kind == "Strip":
        return step("Strip", strip_left=pick.random() < 0.5, strip_right=pick.random() < 0.5)
    if kind == "Bert":
        return step("BertNormalizer", clean_text=pick.random() < 0.5, handle_chinese_chars=pick.random() < 0.5, strip_accents=pick.choice([None, True, False]), lowercase=pick.random() < 0.5)
    return step(kind)


def random_pre_tokenizer(pick):
    kind = pick.choice(["Split", "Split", "String", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits", "ByteLevel", "Metaspace", "BertPreTokenizer"])
    if kind == "Split":
        return split(pick.choice([GPT2, LLAMA3, QWEN2, GPT4, O200K, CLIP, BLOOM, DEEPSEEK]) if pick.random() < 0.3 else random_pattern(pick), pick.choice(BEHAVIORS), pick.random() < 0.3)
    if kind == "String":
        return split(pick.choice([" ", "e", "th", "\n", "a.b"]), pick.choice(BEHAVIORS), pick.random() < 0.3, "String")
    if kind == "Punctuation":
        return step(kind, behavior=pick.choice(BEHAVIORS))
    if kind == "Digits":
        return step(kind, individual_digits=pick.random() < 0.5)
    if kind == "ByteLevel":
        return byte_level(pick.random() < 0.5, pick.random() < 0.5)
    if kind == "Metaspace":
        return metaspace(pick.choice(["always", "first", "never"]), pick.random() < 0.7)
    return step(kind)


def random_decoder(pick):
    return pick.choice([None, byte_level(), step("BPEDecoder", suffix=pick.choice(["</w>", "|"])), metaspace(pick.choice(["always", "first", "never"])), LLAMA_DECODER,
                        step("Fuse"), step("ByteFallback"), replace(pick.choice([MARK, "e"]), " "), replace(r"\s|\p{Lu}", "_", "Regex"), step("Strip", content="a", start=1, stop=pick.randrange(2)),
                        sequence("decoders", step("ByteFallback"), metaspace(), step("Fuse"), step("Strip", content=" ", start=2, stop=0))])


def random_added(pick, first):
    texts = pick.sample(["<|endoftext|>", "<s>", "<word>", "<Word>", "word", "<tool>", "caf\u00e9", "  ", "7", "[MASK]", "</s>", "<unk>", "the"], pick.randrange(6))
    flip = lambda: pick.random() < 0.3
    return [added(first + i, text, pick.random() < 0.5, normalized=flip(), lstrip=flip(), rstrip=flip(), single_word=flip()) for i, text in enumerate(texts)]


def random_file(pick, prose):
    steps = [random_normalizer(pick) for _ in range(pick.choice([0, 1, 1, 2, 3]))]
    normalizer = None if not steps else steps[0] if len(steps) == 1 else sequence("normalizers", *steps)
    cuts = [random_pre_tokenizer(pick) for _ in range(pick.choice([0, 1, 1, 2, 3]))]
    if pick.random() < 0.5:
        return visible(normalizer, sequence("pretokenizers", *cuts) if cuts else None, random_added(pick, 512))
    pre = None if not cuts else cuts[0] if len(cuts) == 1 else sequence("pretokenizers", *cuts)
    at = pick.randrange(len(prose) - 20_000)
    options = {"alphabet": [chr(c) for c in range(0x21, 0x7F) if pick.random() < 0.8], "prefix": pick.choice([None, None, "##"]), "suffix": pick.choice([None, None, "</w>"]),
               "unk": pick.choice([None, "<unk>"]), "fallback": pick.random() < 0.4, "fuse_unk": pick.random() < 0.5, "ignore_merges": pick.random() < 0.3}
    try:
        model = trained(prose[at : at + 20_000], 400, normalizer, pre, **options)
    except BaseException:  # tokenizers fails to train on what its own steps make
        return random_file(pick, prose)
    if options["fallback"] and pick.random() < 0.3:  # some bytes have no token
        keep = {t: i for t, i in model["vocab"].items() if not (t.startswith("<0x") and t[3] in "CD")}
        model["vocab"] = {t: n for n, (t, _) in enumerate(sorted(keep.items(), key=lambda item: item[1]))}
    return file_of(model, normalizer, pre, random_decoder(pick), None, random_added(pick, len(model["vocab"])))
