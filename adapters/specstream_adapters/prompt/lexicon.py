"""The English words that the scene rules know, by what they do in a sentence.

Closed classes are complete enough to parse by; open classes (verbs, places, people) are the common
ones, and the rules fall back on word forms where a word isn't listed.
"""

from __future__ import annotations

__all__ = [
    "ADJECTIVES",
    "ADVERBS",
    "ANIMATE",
    "AUXILIARIES",
    "BE",
    "CONNECTIVES",
    "DAYTIMES",
    "DETERMINERS",
    "FEELING",
    "FEMALE",
    "MALE",
    "MASS",
    "MOTION",
    "NAMING",
    "NOT_PLACES",
    "NUMBERS",
    "PERCEPTION",
    "PLACES",
    "PLACE_PREPOSITIONS",
    "POSITION",
    "POSSESSIVES",
    "PREPOSITIONS",
    "PRONOUNS",
    "QUANTIFIED",
    "RELATIVES",
    "SPEECH",
    "SUBORDINATORS",
    "TIMES",
    "VAGUE",
    "VERBS",
    "WEATHER",
]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


POSSESSIVES = _set("my your his her its our their")
NUMBERS = _set("one two three four five six seven eight nine ten eleven twelve twenty hundred")
DETERMINERS = (
    _set(
        "a an the this that these those some any every each no another both all few many several"
        " other such half"
    )
    | POSSESSIVES
    | NUMBERS
)
PRONOUNS = _set("i you he she it we they this that these those me him them us who")
NAMING = _set("named called known")
QUANTIFIED = _set(
    "nobody nothing everybody everyone everything somebody someone something anybody anyone"
    " anything none neither"
)
RELATIVES = _set("who which that whose whom")
SUBORDINATORS = _set(
    "when as while after before because if until till once since although though unless whenever"
    " where wherever"
)
CONNECTIVES = _set(
    "and but so then or yet suddenly now meanwhile finally however still instead therefore also"
    " perhaps maybe well oh ah yes no okay ok sure next first second third lastly afterwards"
    " together somehow soon"
)
PLACE_PREPOSITIONS = _set(
    "in on at inside beside under near across along outside behind by above below between over"
    " beneath atop aboard among within underneath alongside amid around beyond through against"
    " into onto toward towards"
)
PREPOSITIONS = PLACE_PREPOSITIONS | _set(
    "with without for to from of about off out up down past during after before like until since"
    " except despite upon via per than as"
)
BE = _set("is are was were am be been being 's 're 'm isn't aren't wasn't weren't")
AUXILIARIES = BE | _set(
    "has have had having do does did can could will would may might must shall should 've 'd 'll"
    " hasn't haven't hadn't don't doesn't didn't can't cannot couldn't won't wouldn't mustn't"
    " shouldn't"
)
ADVERBS = _set(
    "always never often sometimes usually rarely seldom just only even almost nearly already"
    " again still soon now then there here once twice too very quite so away back home together"
    " alone forward forwards backward inside outside upstairs downstairs up down out off not ever"
    " perhaps maybe first finally far close straight aloud everywhere somewhere nowhere all"
    " simply really barely hardly also suddenly meanwhile afterwards anyway tonight today"
    " tomorrow yesterday"
)
ADJECTIVES = _set(
    "old young small little big tall short long great tiny huge large giant red blue green"
    " yellow white black grey gray golden silver brown pink purple orange dark bright light deep"
    " quiet silent loud soft hard warm cold hot cool cosy icy frozen wet dry dusty muddy empty"
    " full busy crowded narrow wide broad high low strange new ancient broken lost lonely"
    " friendly brave shy clever wise kind gentle sleepy tired hungry thirsty happy sad angry"
    " worried curious proud poor rich retired last first second third next only same own good bad"
    " best better beautiful pretty ugly lovely perfect patient stubborn nervous calm thick thin"
    " heavy sharp round square flat steep rocky sandy snowy rainy windy stormy sunny foggy misty"
    " cloudy moonlit starry wooden stone glass iron wild tame secret hidden missing single double"
    " whole main distant nearby talking barking entire pale clear fresh sweet bitter early late"
    " open closed simple plain fine rusty royal noble fierce mighty famous elderly"
)
SPEECH = _set(
    "say ask whisper shout cry call answer reply murmur mutter tell announce explain add scream"
    " yell sing mumble promise beg warn gasp laugh exclaim continue agree admit insist repeat"
    " respond declare order hiss growl roar squeak chirp croak sigh"
)
FEELING = _set(
    "smile weep cry sigh laugh tremble gasp frown hope want fear love feel think dream remember"
    " wonder blush grin shiver sob worry wish hesitate believe doubt hate miss regret chuckle"
    " giggle beam relax panic blink nod swallow breathe"
)
PERCEPTION = _set(
    "look see watch stare notice hear listen gaze glance peer spot study examine observe discover"
)
MOTION = _set(
    "walk run ride drive fly swim climb jump leap crawl race chase flee follow rush hurry dash"
    " gallop sail row march cross wander stroll step skip dance slide roll drift float sneak"
    " creep stumble tumble fall dive rise descend enter leave arrive come go return reach"
    " approach travel move turn spin charge escape head trot sprint glide soar paddle cycle skate"
    " ski plunge"
)
POSITION = _set(
    "stand sit live wait lie be work sleep stay arrive rest hide kneel dwell lean linger gather"
    " wake camp land"
)
VAGUE = _set("do work happen manage try succeed help")
VERBS = (
    SPEECH
    | FEELING
    | PERCEPTION
    | MOTION
    | POSITION
    | VAGUE
    | _set(
        "accept aim allow anchor appear argue arrange attack back bake bark bathe beat beckon"
        " become beep belong bend bind bite blaze bleed blend bloom blow board boil bounce bow"
        " break bring brush bubble bud build bump burn burst bury button buy buzz caress carry"
        " carve catch change chatter cheer chew chop circle clap clatter clean clear click close"
        " clutch collect combine contain cook count cover crack crackle crash creak crouch crowd"
        " crumble crush curl curtsy cut dangle dare deliver depart dig disappear dismount"
        " dissolve dock doze drag draw drill drink drip drizzle drop drown drum dry dust eat echo"
        " embrace emerge empty end exit explode face fade fasten feed fight fill find finish fix"
        " fizz flash flicker flip flow flutter fold forget freeze fry garnish get give gleam"
        " glitter glow gnaw grab grasp graze greet grill grind grip groom grow guard guide gulp"
        " hammer hand hang haul heave hoe hold hop hover howl hug hum hunt hurl ignite join keep"
        " kick kiss knit knock knot know lace lap launch lay lead learn lend lick lift light lock"
        " lose lower make mark measure melt mend milk mix moor mop mount nail need nest nibble"
        " nudge offer open orbit own pack paint park part pass paste pat patch pay pedal peel"
        " perch pick pin pinch pitch place plan plant plate pluck point poke polish pounce pour"
        " prefer preheat prepare press pretend print pull punch purr push put quit rain raise"
        " rake rattle read receive refuse release remain remove repair rescue ring roast rock rub"
        " rumble saddle salute save saw scatter score scout scrape scratch scrub search season"
        " seem seize sell send serve set settle sew shake share shatter shear shed shimmer shine"
        " shoot shove show shrink shrug shut simmer sink sip slam slap slice slip slow smash"
        " smell smoke smoulder snap snarl snatch sniff sniffle snore snow soak solve sort sow"
        " sparkle spend spill splash split spray spread spring sprinkle sprout squeal squeeze"
        " squint stack stalk stamp start steal steam steer stick stir stitch stop store stretch"
        " strike stroke strum stuff submerge surface sway sweep swell swing switch tackle take"
        " tap taste teach tear throw thunder tick tickle tie tilt toast toss touch tow trace"
        " track trade train trap trip trust tug twinkle twist type uncover unfold unlock unpack"
        " unroll unwrap use vanish visit wag warm wash water wave wear weave weigh welcome weld"
        " whirl whirr whisk whistle wilt win wind wink wipe wrap write yank yawn zip"
    )
)
DAYTIMES = _set(
    "morning evening night midnight noon dawn dusk sunrise sunset afternoon twilight daybreak"
    " nightfall midday tonight winter summer spring autumn sundown moonrise"
)
TIMES = DAYTIMES | _set(
    "day days week weeks month months year years moment moments while minute minutes hour hours"
    " time times life nights mornings evenings today tomorrow yesterday season century ages"
    " monday tuesday wednesday thursday friday saturday sunday january february april june july"
    " august september october november december christmas"
)
WEATHER = _set(
    "rain snow fog mist wind winds storm thunder lightning sun sunlight moonlight light stars"
    " sky moon cloud clouds air breeze hail frost heat cold darkness shadow shadows night dusk"
    " dawn smoke dust snowflakes raindrops silence sea waves tide"
)
MASS = WEATHER | _set(
    "music laughter water fire dinner breakfast lunch time life love hope fear history science"
    " work food money blood sand grass ice sleep death peace war steam"
)
PLACES = _set(
    "island forest wood woods lake market tower greenhouse pier alley river field fields bridge"
    " station hut road kitchen deck ship workshop waterfall park cave beach theatre theater"
    " village town city house home cottage castle palace room bedroom bathroom hall hallway"
    " corridor cellar attic basement garden yard courtyard barn farm stable street lane square"
    " plaza shop store bakery cafe café bar pub tavern inn hotel restaurant diner library museum"
    " school classroom university office laboratory lab hospital church temple monastery chapel"
    " cathedral graveyard cemetery mountain mountains hill hills valley cliff cliffs canyon gorge"
    " desert dune dunes plain plains meadow prairie jungle swamp marsh moor shore coast seaside"
    " harbour harbor port dock docks quay bay ocean sea lagoon reef stream creek pond pool well"
    " roof rooftop balcony terrace porch doorway stairs staircase stage arena stadium platform"
    " train carriage bus tram car truck boat raft cabin cockpit spaceship spacecraft planet moon"
    " orbit space galaxy corner counter corral tent camp campfire clearing path trail track"
    " highway crossroads tunnel mine quarry factory warehouse airport runway plane studio gallery"
    " ballroom throne dungeon prison cell lighthouse windmill mill vineyard orchard glacier"
    " summit peak ridge slope ledge volcano crater savanna savannah tundra oasis riverbank bank"
    " waterfront boardwalk playground zoo circus fair carnival himalayas alps arctic countryside"
    " kingdom land world horizon neighbourhood neighborhood apartment flat elevator lobby"
    " freighter submarine observatory planetarium backyard driveway garage parking lot alleyway"
    " rink court pitch backstage foyer aisle nest burrow den lair treetop treetops ruins fountain"
)
NOT_PLACES = _set(
    "hand hands head face eyes eye arm arms shoulder shoulders knee knees lap feet foot heart"
    " mind mouth chest back neck hair ear ears lips voice breath silence fear surprise fact love"
    " trouble end way case need hurry order turn place danger peace pieces half vain tears pain"
    " detail return charge addition general particular least last first once all word words name"
    " dream dreams song songs left right side colour color pair line row screen middle distance"
    " background beginning sign"
)
MALE = _set(
    "man boy king prince father dad brother son uncle grandfather grandpa fisherman husband"
    " knight monk wizard gentleman nephew lad sir mr waiter actor"
)
FEMALE = _set(
    "woman girl queen princess mother mum mom sister daughter aunt grandmother grandma wife"
    " witch nun lady niece maid mrs ms miss waitress actress"
)
ANIMATE = (
    MALE
    | FEMALE
    | _set(
        "person people child children baby keeper baker painter sailor captain pilot driver"
        " farmer teacher student doctor nurse singer musician dancer writer poet artist inventor"
        " scientist engineer astronaut explorer hunter soldier guard guide detective chef cook"
        " gardener shepherd merchant traveller traveler stranger friend neighbour neighbor"
        " villager villagers robot android alien dragon giant ghost fairy elf gnome dwarf troll"
        " monster mermaid fox wolf bear cat dog puppy kitten horse pony owl crow bird sparrow"
        " eagle hawk duck goose swan rabbit hare mouse rat squirrel hedgehog deer stag moose"
        " elephant lion tiger leopard cheetah monkey ape gorilla snake lizard frog toad turtle"
        " tortoise fish whale dolphin shark octopus seal penguin otter beaver badger goat sheep"
        " lamb cow bull pig donkey camel bee butterfly spider ant crab cub cubs calf foal chick"
        " herd flock pack crowd family crew team audience bartender barista clerk janitor"
        " journalist reporter photographer librarian clockmaker carpenter blacksmith tailor"
        " cobbler weaver diver climber cyclist runner swimmer skater boxer wrestler player coach"
        " thief burglar spy pirate ninja samurai emperor duke duchess mayor judge lawyer officer"
        " policeman firefighter postman courier mechanic miner lumberjack beekeeper violinist"
        " pianist drummer cellist conductor"
    )
)
