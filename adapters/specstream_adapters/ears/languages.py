"""Names of languages, as servers of Whisper models tell them, to their codes."""

from __future__ import annotations

__all__ = ["language_code"]

_NAMES = """
en=english zh=chinese de=german es=spanish ru=russian ko=korean fr=french ja=japanese
pt=portuguese tr=turkish pl=polish ca=catalan nl=dutch ar=arabic sv=swedish it=italian
id=indonesian hi=hindi fi=finnish vi=vietnamese he=hebrew uk=ukrainian el=greek ms=malay
cs=czech ro=romanian da=danish hu=hungarian ta=tamil no=norwegian th=thai ur=urdu
hr=croatian bg=bulgarian lt=lithuanian la=latin mi=maori ml=malayalam cy=welsh sk=slovak
te=telugu fa=persian lv=latvian bn=bengali sr=serbian az=azerbaijani sl=slovenian kn=kannada
et=estonian mk=macedonian br=breton eu=basque is=icelandic hy=armenian ne=nepali
mn=mongolian bs=bosnian kk=kazakh sq=albanian sw=swahili gl=galician mr=marathi pa=punjabi
si=sinhala km=khmer sn=shona yo=yoruba so=somali af=afrikaans oc=occitan ka=georgian
be=belarusian tg=tajik sd=sindhi gu=gujarati am=amharic yi=yiddish lo=lao uz=uzbek
fo=faroese ht=haitian ps=pashto tk=turkmen nn=nynorsk mt=maltese sa=sanskrit
lb=luxembourgish my=myanmar bo=tibetan tl=tagalog mg=malagasy as=assamese tt=tatar
haw=hawaiian ln=lingala ha=hausa ba=bashkir jw=javanese su=sundanese yue=cantonese
"""
_CODES = {name: code for code, _, name in (pair.partition("=") for pair in _NAMES.split())}


def language_code(told: object) -> str | None:
    """Return the code of a language that is told by its name or its tag; None where it is neither.

    ``"english"``, ``"English"``, ``"en"`` and ``"en-US"`` give ``"en"``.
    """
    if not isinstance(told, str):
        return None
    name = told.strip().lower()
    if name in _CODES:
        return _CODES[name]
    tag = name.replace("_", "-").partition("-")[0]
    return tag if tag in _CODES.values() else _CODES.get(name.partition(" ")[0])
