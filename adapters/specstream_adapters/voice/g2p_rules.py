"""English spelling to sounds, as data: rules by letter, common exceptions, letter names.

A rule is ``graph left right phones``: at ``graph``, if the regex ``left`` ends before it and
``right`` begins after it, say ``phones`` (``0``: nothing) and go on behind ``graph``. ``-`` stands for
"anything". ``V`` is a vowel letter, ``C`` a consonant, ``P`` a vowel somewhere before, ``E`` one
consonant and an ending that makes the vowel before it long ("make", "making"). First match wins.
"""

__all__ = ["EXCEPTIONS", "FUNCTION_WORDS", "LETTERS", "RULES"]

RULES = """
a ^ $ ə
a ^ (b[aiou][aeiou]?[^l]|cr[oq]|g[aor]|l[io][nkv]|m[aou][uzn]|w[ah]|r[eo]u|cc|pp[ea]|tt[ae]|ss[iou]) ə
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

EXCEPTIONS = """
a ə
about ə b ˈaʊ t
again ə ɡ ˈɛ n
all ɔː l
also ˈɔː l s oʊ
although ɔː l ð ˈoʊ
always ˈɔː l w eɪ z
an æ n
and æ n d
another ə n ˈʌ ð ɚ
answer ˈæ n s ɚ
any ˈɛ n i
are ɑː ɹ
area ˈɛ ɹ i ə
as æ z
aunt æ n t
be b iː
beautiful b j ˈuː t ɪ f ə l
because b ɪ k ˈʌ z
been b ɪ n
being b ˈiː ɪ ŋ
blood b l ʌ d
both b oʊ θ
breath b ɹ ɛ θ
build b ɪ l d
busy b ˈɪ z i
but b ʌ t
buy b aɪ
cafe k æ f ˈeɪ
can't k æ n t
city s ˈɪ t i
clothes k l oʊ ð z
color k ˈʌ l ɚ
colour k ˈʌ l ɚ
come k ʌ m
comes k ʌ m z
coming k ˈʌ m ɪ ŋ
consider k ə n s ˈɪ d ɚ
could k ʊ d
create k ɹ i ˈeɪ t
deliver d ɪ l ˈɪ v ɚ
different d ˈɪ f ɹ ə n t
do d uː
does d ʌ z
doing d ˈuː ɪ ŋ
done d ʌ n
don't d oʊ n t
door d ɔː ɹ
early ˈɜː ɹ l i
easy ˈiː z i
eight eɪ t
else ɛ l s
engine ˈɛ n dʒ ɪ n
enough ɪ n ˈʌ f
even ˈiː v ə n
ever ˈɛ v ɚ
every ˈɛ v ɹ i
eye aɪ
eyes aɪ z
fifteen f ɪ f t ˈiː n
family f ˈæ m ə l i
father f ˈɑː ð ɚ
flood f l ʌ d
foot f ʊ t
for f ɔː ɹ
forest f ˈɔː ɹ ɪ s t
four f ɔː ɹ
friend f ɹ ɛ n d
friends f ɹ ɛ n d z
from f ɹ ʌ m
garage ɡ ə ɹ ˈɑː ʒ
give ɡ ɪ v
given ɡ ˈɪ v ə n
gone ɡ ɔː n
great ɡ ɹ eɪ t
guess ɡ ɛ s
half h æ f
has h æ z
have h æ v
having h ˈæ v ɪ ŋ
he h iː
head h ɛ d
heart h ɑː ɹ t
hello h ə l ˈoʊ
height h aɪ t
here h ɪ ɹ
his h ɪ z
honest ˈɑː n ɪ s t
hour aʊ ɚ
how h aʊ
hundred h ˈʌ n d ɹ ɪ d
i aɪ
idea aɪ d ˈiː ə
image ˈɪ m ɪ dʒ
into ˈɪ n t uː
is ɪ z
island ˈaɪ l ə n d
it ɪ t
its ɪ t s
juice dʒ uː s
key k iː
know n oʊ
language l ˈæ ŋ ɡ w ɪ dʒ
laugh l æ f
learn l ɜː ɹ n
listen l ˈɪ s ə n
little l ˈɪ t ə l
live l ɪ v
lives l ɪ v z
living l ˈɪ v ɪ ŋ
lose l uː z
machine m ə ʃ ˈiː n
many m ˈɛ n i
me m iː
minute m ˈɪ n ɪ t
model m ˈɑː d ə l
models m ˈɑː d ə l z
money m ˈʌ n i
mother m ˈʌ ð ɚ
mountain m ˈaʊ n t ə n
move m uː v
music m j ˈuː z ɪ k
my m aɪ
naive n aɪ ˈiː v
never n ˈɛ v ɚ
none n ʌ n
nothing n ˈʌ θ ɪ ŋ
ocean ˈoʊ ʃ ə n
o'clock ə k l ˈɑː k
of ʌ v
off ɔː f
often ˈɔː f ə n
ok oʊ k ˈeɪ
okay oʊ k ˈeɪ
on ɑː n
once w ʌ n s
one w ʌ n
ones w ʌ n z
only ˈoʊ n l i
open ˈoʊ p ə n
or ɔː ɹ
other ˈʌ ð ɚ
our aʊ ɚ
out aʊ t
over ˈoʊ v ɚ
people p ˈiː p ə l
percent p ɚ s ˈɛ n t
perhaps p ɚ h ˈæ p s
picture p ˈɪ k tʃ ɚ
pretty p ɹ ˈɪ t i
promise p ɹ ˈɑː m ɪ s
put p ʊ t
question k w ˈɛ s tʃ ə n
quiet k w ˈaɪ ə t
quite k w aɪ t
read ɹ iː d
ready ɹ ˈɛ d i
real ɹ iː l
really ɹ ˈiː l i
right ɹ aɪ t
river ɹ ˈɪ v ɚ
said s ɛ d
says s ɛ z
science s ˈaɪ ə n s
second s ˈɛ k ə n d
seven s ˈɛ v ə n
she ʃ iː
shoe ʃ uː
should ʃ ʊ d
some s ʌ m
someone s ˈʌ m w ʌ n
something s ˈʌ m θ ɪ ŋ
sometimes s ˈʌ m t aɪ m z
son s ʌ n
sorry s ˈɑː ɹ i
speech s p iː tʃ
sugar ʃ ˈʊ ɡ ɚ
supply s ə p l ˈaɪ
sure ʃ ʊ ɹ
talk t ɔː k
than ð æ n
that ð æ t
the ð ə
their ð ɛ ɹ
them ð ɛ m
then ð ɛ n
there ð ɛ ɹ
these ð iː z
they ð eɪ
this ð ɪ s
those ð oʊ z
though ð oʊ
thousand θ ˈaʊ z ə n d
through θ ɹ uː
to t uː
today t ə d ˈeɪ
token t ˈoʊ k ə n
together t ə ɡ ˈɛ ð ɚ
tomorrow t ə m ˈɑː ɹ oʊ
two t uː
us ʌ s
use j uː z
very v ˈɛ ɹ i
video v ˈɪ d i oʊ
voice v ɔɪ s
want w ɑː n t
was w ʌ z
water w ˈɔː t ɚ
we w iː
were w ɜː ɹ
what w ʌ t
where w ɛ ɹ
who h uː
whole h oʊ l
whose h uː z
wind w ɪ n d
with w ɪ ð
without w ɪ ð ˈaʊ t
woman w ˈʊ m ə n
women w ˈɪ m ɪ n
won't w oʊ n t
world w ɜː ɹ l d
would w ʊ d
write ɹ aɪ t
year j ɪ ɹ
years j ɪ ɹ z
yes j ɛ s
you j uː
young j ʌ ŋ
your j ɔː ɹ
"""

LETTERS = """
a eɪ
b b iː
c s iː
d d iː
e iː
f ɛ f
g dʒ iː
h eɪ tʃ
i aɪ
j dʒ eɪ
k k eɪ
l ɛ l
m ɛ m
n ɛ n
o oʊ
p p iː
q k j uː
r ɑː ɹ
s ɛ s
t t iː
u j uː
v v iː
w d ˈʌ b ə l j uː
x ɛ k s
y w aɪ
z z iː
"""

FUNCTION_WORDS = frozenset(
    "a an and are as at be been but by can could did do does for from had has have he her him his "
    "i if in into is it its me my of on or our she should so than that the their them then there "
    "they this to up us was we were what when which who will with would you your".split()
)
