"""English spelling to sounds, as data.

A rule is ``graph left right phones``: at ``graph``, if the regex ``left`` ends before it and
``right`` begins after it, say ``phones`` (``0``: nothing) and go on behind ``graph``; ``-`` stands
for "anything". ``V`` is a vowel letter, ``C`` a consonant, ``P`` a vowel somewhere before, ``E``
one consonant and an ending that makes the vowel before it long ("make"). The first match wins.
"""

__all__ = ["RULES"]

RULES = """
a ^ $ ə
a ^ (b[aiou][aeiou]?[^l]|cr[oq]|g[aor]|l[io][nkv]|m[aou][uzn]|w[ah]|r[eo]u) ə
a ^ (cc|pp[ea]|tt[ae]|ss[iou]) ə
augh - - ɔː
au - - ɔː
aw - - ɔː
air - - ɛ ɹ
aigh - - eɪ
ai P n$ ə
ai - - eɪ
ay - - eɪ
all PC y$ ə l
all - ($|s$|s?[^aeiouy]) ɔː l
al - k ɔː
al - m$ ɑː
al - [td] ɔː l
a PC ge(s|d)?$ ɪ
are PC $ ɛ ɹ
are - (s|d)?$ ɛ ɹ
ar - [iy] ɛ ɹ
arr ^ - ə ɹ
arr - - æ ɹ
ar (w|qu) [dmnt] ɔː ɹ
ar P (s|ly)?$ ɚ
ar P ds?$ ɚ
ar - - ɑː ɹ
a PC bl[ey] ə
a ^ nger æ
a (^n|r) tional æ
a (ch|r) nging eɪ
a - (ble|ste|nge|nci|tion|tian|sion|[ct]i[eo]) eɪ
a PC te(ly)?$ eɪ
a (w|wh|qu) [^aeiouylrxkg] ɑː
a - E eɪ
a - Cy$ eɪ
a - $ ə
a PC (l|n|nt|nce|l?ly|nts)s?$ ə
a - - æ
bb - - b
b m (s|ed|er|ing)?$ 0
b - ts?$ 0
b - - b
cch - - k
ch - [rl] k
ch - (em|or[du]|aos|arac) k
ch - - tʃ
ck - - k
ci - (al|ous|en|an) ʃ
cqu - - k w
cc - [eiy] k s
cc - - k
c s [eiy] 0
c - [eiy] s
c - - k
dge - s$ dʒ ɪ
dge - - dʒ
dg - [iy] dʒ
dd - - d
du - (al|ca) dʒ uː
d - - d
eau - - oʊ
eer - - ɪ ɹ
ear - [lnct] ɜː ɹ
ear - - ɪ ɹ
ea - th(e|es|ed|ing)$ iː
ea - (d|ds|dy|th|nt)$ ɛ
ea - (ther|lth|sur|v[ye]|pon|dow|lous) ɛ
ea (cr|r) (t[ei]|l[il]) i eɪ
ea - - iː
ee - - iː
eigh - - eɪ
eir - - ɛ ɹ
ei - - iː
ey PC s?$ i
ey - - eɪ
ew [rljdtns] - uː
ew - - j uː
eu [rljdtns] - uː
eu - - j uː
eous - - i ə s
eo - - i oʊ
ere - $ ɪ ɹ
er - i[aoe] ɪ ɹ
err - - ɛ ɹ
er PC V ə ɹ
er - V ɛ ɹ
er P - ɚ
er - - ɜː ɹ
e P[td] d$ ɪ
ed P(p|k|f|s|x|c|ch|sh|gh) $ t
e P d$ 0
e P([sxzcg]|ch|sh) s$ ɪ
e PC s$ 0
e P $ 0
e PC (ly|ment|ful|less|ness|some)(s|ly)?$ 0
e PC (ment|nt|nc[ey]|n|l|t|m)s?$ ə
e ^(b|d|r|pr|s) CC?V ɪ
e ^ C[aeo] ɪ
e - Ce$ iː
e - $ iː
e - - ɛ
ff - - f
f - - f
gn ^ - n
gn - (s|ed|ing|er|ers|ment)?$ n
gh ^ - ɡ
gh - - 0
gg - - ɡ
gue - s?$ ɡ
gu - [eiy] ɡ
gu - a ɡ w
g ^ (et|iv|irl|ift|ear|ig) ɡ
g ^(be|to|for|ti|tar|bur) (e|i) ɡ
g - [eiy] dʒ
g - - ɡ
h [rkgx] - 0
h [aeiou] $ 0
h - - h
igh - - aɪ
ig - n$ aɪ
i - (nd|ld)(s|er|ly|ness|ing|ed)?$ aɪ
ie P (d|s|st)$ i
ie - (d|s)?$ aɪ
ier P s?$ i ɚ
iew - - j uː
ie - (nce|nt)s?$ i ə
ie - - iː
ire - (s|d)?$ aɪ ɚ
ir - [eir] ɪ ɹ
ir - - ɜː ɹ
ion [gx] - ə n
ion - - j ə n
ious [gx] - ə s
ious - - i ə s
ia ^C+ - aɪ ə
ia - $ i ə
ia - - i ə
io ^C+ - aɪ ə
io - - i oʊ
i - que iː
i PC (ve|ce)(s|ly)?$ ɪ
i PC.*V.*C (te|ne)(s|ly)?$ ɪ
i - E aɪ
i ^C+ (V|sl) aɪ
i - $ i
i - - ɪ
j - - dʒ
kn ^ - n
k - - k
ll - - l
le [bcdfgkpstz] (s|d)?$ ə l
l - - l
mm - - m
mn ^ - n
m - - m
ng (cha|ra) (es|ed|er|ing)$ n dʒ
ng (^fi|^lo|^stro|you|^hu|^a|^si|^e) (e[rs]|l|r|u) ŋ ɡ
ng - (s|ed|ing|ings|ly|ness|th.*|y)?$ ŋ
ng - [eiy] n dʒ
ng - - ŋ ɡ
nn - - n
n m $ 0
n - (k|x|q|c[^eiyh]) ŋ
n - - n
oar - - ɔː ɹ
oa - - oʊ
oe - s?$ oʊ
oi - - ɔɪ
oy - - ɔɪ
oor - - ɔː ɹ
oo - k ʊ
oo (^g|^w|st|^h) d ʊ
oo - - uː
ough - t ɔː
ough - - oʊ
oul - d$ ʊ
oul - - oʊ l
our ^j - ɜː ɹ
our P s?$ ɚ
our - - ɔː ɹ
ous - (ly|ness)?$ ə s
ou - (ble|ple|ntr|sin|ng|ch$) ʌ
ou - (p|th$) uː
ou - - aʊ
own (kn|gr|sh|fl|bl|thr|^) (s|er|ers|ed)?$ oʊ n
ow P $ oʊ
ow ^(h|n|c|br|v|pl|w|ch) $ aʊ
ow - (n|d|l|er|el|se) aʊ
ow - - oʊ
or w [dklmst] ɜː ɹ
or P s?$ ɚ
orr - - ɑː ɹ
ore - - ɔː ɹ
or - - ɔː ɹ
ol - k oʊ
o - (ld|ll$|lt|st$|lls$) oʊ
o - (n[ek]ey|nth|ther|zen) ʌ
o (^l|ab|gl|^c|^d|sh) v(e|er) ʌ
o (^m|pr) ve? uː
o PC ns?$ ə
o PC m$ ə
o - E oʊ
o - (ver|pen|c[ai]|tal|cus|tion|cea|ci|bo$|ky|ny$|sy$|t[oi]|ment) oʊ
o ^ pi ə
o - (ff|ss$|ss(es|ed|ing)|ft|ng|g$|gs$|st|th) ɔː
o - $ oʊ
o - - ɑː
ph - - f
pp - - p
p ^ [sn] 0
p - - p
que P s?$ k
qu - - k w
q - - k
rr - - ɹ
rh - - ɹ
r - - ɹ
sch - - s k
sh - - ʃ
ssion - - ʃ ə n
ssure - - ʃ ɚ
sion V - ʒ ə n
sion C - ʃ ə n
sure V - ʒ ɚ
su V al ʒ uː
ss - - s
sc - [eiy] s
s ^ - s
s [ui] $ s
s [ptkfc] $ s
s th $ s
s . $ z
s [rln] e s
s a e(s|d)?$ s
s V e(s|d)?$ z
s - m$ z ə
s V [iomy] z
s - - s
tion s - tʃ ə n
tion - - ʃ ə n
tial - - ʃ ə l
tien - - ʃ ə n
tious - - ʃ ə s
ture - - tʃ ɚ
tu - al tʃ uː
tch - - tʃ
th - m$ ð ə
th V er ð
th V e$ ð
th - - θ
tt - - t
t s (en|le) 0
t - - t
uy - - aɪ
ui [gb] - ɪ
ui - - uː
ue [rljs] - uː
ue - - j uː
urr - - ɜː ɹ
ure [fg] - j ɚ
ure - (s|d)?$ j ʊ ɹ
ur [rljd] V ʊ ɹ
ur - V j ʊ ɹ
ur - - ɜː ɹ
u ^[pbf] (ll|sh|t$|ts$|tt) ʊ
u ^ ni j uː
u PC (m|s|l|lly)s?$ ə
u [rljstdn] (E|C[aeiouy]|V|th$) uː
u ch - uː
u - (E|C[aeiouy]|V) j uː
u - $ uː
u - - ʌ
v - - v
wr ^ - ɹ
wh - o h
wh - - w
w - - w
x ^ - z
x e V ɡ z
xc - [ei] k s
x - - k s
y ^ V j
y ^C+ $ aɪ
y f $ aɪ
y (^re|app|upp|ulti|^im|^com)pl $ aɪ
y C E aɪ
y ^C+ (ing|ou) aɪ
y - $ i
y V V j
y - - ɪ
zz - - z
z t - s
z - - z
"""
