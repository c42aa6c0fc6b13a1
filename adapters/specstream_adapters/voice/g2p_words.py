"""Words that the spelling rules get wrong, and the names of letters, as data.

Entries are ``word phones``, separated by commas; ``ˈ`` stands before the stressed vowel where there
is more than one.
"""

__all__ = ["EXCEPTIONS", "FUNCTION_WORDS", "LETTERS"]

EXCEPTIONS = """
a ə, about ə b ˈaʊ t, again ə ɡ ˈɛ n, all ɔː l, also ˈɔː l s oʊ, although ɔː l ð ˈoʊ,
always ˈɔː l w eɪ z, an æ n, and æ n d, another ə n ˈʌ ð ɚ, answer ˈæ n s ɚ, any ˈɛ n i, are ɑː ɹ,
area ˈɛ ɹ i ə, as æ z, aunt æ n t, be b iː, beautiful b j ˈuː t ɪ f ə l, because b ɪ k ˈʌ z,
been b ɪ n, being b ˈiː ɪ ŋ, blood b l ʌ d, both b oʊ θ, breath b ɹ ɛ θ, build b ɪ l d,
busy b ˈɪ z i, but b ʌ t, buy b aɪ, cafe k æ f ˈeɪ, can't k æ n t, city s ˈɪ t i,
clothes k l oʊ ð z, color k ˈʌ l ɚ, colour k ˈʌ l ɚ, come k ʌ m, comes k ʌ m z, coming k ˈʌ m ɪ ŋ,
consider k ə n s ˈɪ d ɚ, could k ʊ d, create k ɹ i ˈeɪ t, deliver d ɪ l ˈɪ v ɚ,
different d ˈɪ f ɹ ə n t, do d uː, does d ʌ z, doing d ˈuː ɪ ŋ, done d ʌ n, don't d oʊ n t,
door d ɔː ɹ, early ˈɜː ɹ l i, easy ˈiː z i, eight eɪ t, else ɛ l s, engine ˈɛ n dʒ ɪ n,
enough ɪ n ˈʌ f, even ˈiː v ə n, ever ˈɛ v ɚ, every ˈɛ v ɹ i, eye aɪ, eyes aɪ z,
fifteen f ɪ f t ˈiː n, family f ˈæ m ə l i, father f ˈɑː ð ɚ, flood f l ʌ d, foot f ʊ t,
for f ɔː ɹ, forest f ˈɔː ɹ ɪ s t, four f ɔː ɹ, friend f ɹ ɛ n d, friends f ɹ ɛ n d z, from f ɹ ʌ m,
garage ɡ ə ɹ ˈɑː ʒ, give ɡ ɪ v, given ɡ ˈɪ v ə n, gone ɡ ɔː n, great ɡ ɹ eɪ t, guess ɡ ɛ s,
half h æ f, has h æ z, have h æ v, having h ˈæ v ɪ ŋ, he h iː, head h ɛ d, heart h ɑː ɹ t,
hello h ə l ˈoʊ, height h aɪ t, here h ɪ ɹ, his h ɪ z, honest ˈɑː n ɪ s t, hour aʊ ɚ, how h aʊ,
hundred h ˈʌ n d ɹ ɪ d, i aɪ, idea aɪ d ˈiː ə, image ˈɪ m ɪ dʒ, into ˈɪ n t uː, is ɪ z,
island ˈaɪ l ə n d, it ɪ t, its ɪ t s, juice dʒ uː s, key k iː, know n oʊ,
language l ˈæ ŋ ɡ w ɪ dʒ, laugh l æ f, learn l ɜː ɹ n, listen l ˈɪ s ə n, little l ˈɪ t ə l,
live l ɪ v, lives l ɪ v z, living l ˈɪ v ɪ ŋ, lose l uː z, machine m ə ʃ ˈiː n, many m ˈɛ n i,
me m iː, minute m ˈɪ n ɪ t, model m ˈɑː d ə l, models m ˈɑː d ə l z, money m ˈʌ n i,
mother m ˈʌ ð ɚ, mountain m ˈaʊ n t ə n, move m uː v, music m j ˈuː z ɪ k, my m aɪ,
naive n aɪ ˈiː v, never n ˈɛ v ɚ, none n ʌ n, nothing n ˈʌ θ ɪ ŋ, ocean ˈoʊ ʃ ə n,
o'clock ə k l ˈɑː k, of ʌ v, off ɔː f, often ˈɔː f ə n, ok oʊ k ˈeɪ, okay oʊ k ˈeɪ, on ɑː n,
once w ʌ n s, one w ʌ n, ones w ʌ n z, only ˈoʊ n l i, open ˈoʊ p ə n, or ɔː ɹ, other ˈʌ ð ɚ,
our aʊ ɚ, out aʊ t, over ˈoʊ v ɚ, people p ˈiː p ə l, percent p ɚ s ˈɛ n t, perhaps p ɚ h ˈæ p s,
picture p ˈɪ k tʃ ɚ, pretty p ɹ ˈɪ t i, promise p ɹ ˈɑː m ɪ s, put p ʊ t, question k w ˈɛ s tʃ ə n,
quiet k w ˈaɪ ə t, quite k w aɪ t, read ɹ iː d, ready ɹ ˈɛ d i, real ɹ iː l, really ɹ ˈiː l i,
right ɹ aɪ t, river ɹ ˈɪ v ɚ, said s ɛ d, says s ɛ z, science s ˈaɪ ə n s, second s ˈɛ k ə n d,
seven s ˈɛ v ə n, she ʃ iː, shoe ʃ uː, should ʃ ʊ d, some s ʌ m, someone s ˈʌ m w ʌ n,
something s ˈʌ m θ ɪ ŋ, sometimes s ˈʌ m t aɪ m z, son s ʌ n, sorry s ˈɑː ɹ i, speech s p iː tʃ,
sugar ʃ ˈʊ ɡ ɚ, supply s ə p l ˈaɪ, sure ʃ ʊ ɹ, talk t ɔː k, than ð æ n, that ð æ t, the ð ə,
their ð ɛ ɹ, them ð ɛ m, then ð ɛ n, there ð ɛ ɹ, these ð iː z, they ð eɪ, this ð ɪ s,
those ð oʊ z, though ð oʊ, thousand θ ˈaʊ z ə n d, through θ ɹ uː, to t uː, today t ə d ˈeɪ,
token t ˈoʊ k ə n, together t ə ɡ ˈɛ ð ɚ, tomorrow t ə m ˈɑː ɹ oʊ, two t uː, us ʌ s, use j uː z,
very v ˈɛ ɹ i, video v ˈɪ d i oʊ, voice v ɔɪ s, want w ɑː n t, was w ʌ z, water w ˈɔː t ɚ, we w iː,
were w ɜː ɹ, what w ʌ t, where w ɛ ɹ, who h uː, whole h oʊ l, whose h uː z, wind w ɪ n d,
with w ɪ ð, without w ɪ ð ˈaʊ t, woman w ˈʊ m ə n, women w ˈɪ m ɪ n, won't w oʊ n t,
world w ɜː ɹ l d, would w ʊ d, write ɹ aɪ t, year j ɪ ɹ, years j ɪ ɹ z, yes j ɛ s, you j uː,
young j ʌ ŋ, your j ɔː ɹ
"""

LETTERS = """
a eɪ, b b iː, c s iː, d d iː, e iː, f ɛ f, g dʒ iː, h eɪ tʃ, i aɪ, j dʒ eɪ, k k eɪ, l ɛ l, m ɛ m,
n ɛ n, o oʊ, p p iː, q k j uː, r ɑː ɹ, s ɛ s, t t iː, u j uː, v v iː, w d ˈʌ b ə l j uː, x ɛ k s,
y w aɪ, z z iː
"""

FUNCTION_WORDS = frozenset(
    "a an and are as at be been but by can could did do does for from had has have he her him "
    "his i if in into is it its me my of on or our she should so than that the their them then "
    "there they this to up us was we were what when which who will with would you your".split()
)
"""Words that carry no stress in a sentence."""
