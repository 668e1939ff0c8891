#include <stdio.h>

#include "data/set/permute.h"
#include "data/synth/synth_model.h"

/* Invented titles: a topic, an adjective and a noun, all different within a world. */
static const char *const topics[] = {
    "Space Opera",    "Cosy Mystery",   "Slow Cinema",   "Heist",       "Sea Stories",
    "Courtroom",      "Mountain Tales", "Robot Comedy",  "Ghost Story", "Road Trip",
    "Kitchen Drama",  "Spy Thriller",   "Fairy Tale",    "Western",     "Concert Film",
    "Nature",         "Time Travel",    "Small Town",    "Chess Club",  "Silent Era",
    "Detective Noir", "Love Letters",   "Polar Voyage",  "Desert Epic", "School Days",
    "Train Journey",  "Island Life",    "Circus",        "Jazz Age",    "Moon Landing",
    "Dog Stories",    "Cat Stories",    "Football",      "Ballet",      "Antarctic",
    "Submarine",      "Lighthouse",     "Garden",        "Inventors",   "Dragons",
    "Pirates",        "Vampires",       "Clockwork",     "Deep Forest", "Night Market",
    "Opera House",    "Bicycle",        "Winter Sports", "Old Maps",    "Radio Days"};
static const char *const adjectives[] = {
    "Silent",  "Golden",    "Hidden",  "Crooked", "Velvet",   "Distant",   "Broken",   "Gentle",
    "Scarlet", "Wandering", "Hollow",  "Paper",   "Electric", "Forgotten", "Marble",   "Restless",
    "Amber",   "Borrowed",  "Secret",  "Frozen",  "Lucky",    "Midnight",  "Patient",  "Copper",
    "Flying",  "Quiet",     "Emerald", "Lonely",  "Burning",  "Glass",     "Northern", "Last",
    "Blue",    "Invisible", "Stolen",  "Tender",  "Sleeping", "Iron",      "Salt",     "Seventh",
    "Bright",  "Weathered", "Rolling", "Honest",  "Faraway",  "Painted",   "Humming",  "Early"};
static const char *const nouns[] = {
    "Harbour", "Orchard",   "Lantern",  "Compass",  "Staircase", "River",    "Violin",   "Letter",
    "Window",  "Telescope", "Bridge",   "Garden",   "Mirror",    "Envelope", "Sparrow",  "Island",
    "Clock",   "Meadow",    "Umbrella", "Station",  "Key",       "Feather",  "Carousel", "Atlas",
    "Kite",    "Library",   "Shore",    "Piano",    "Ladder",    "Comet",    "Teapot",   "Valley",
    "Balcony", "Whistle",   "Anchor",   "Portrait", "Cabin",     "Sundial",  "Ticket",   "Parade",
    "Tower",   "Almanac",   "Canal",    "Acrobat",  "Thimble",   "Horizon",  "Suitcase", "Melody"};

enum {
    N_TOPICS = sizeof topics / sizeof topics[0],
    N_ADJECTIVES = sizeof adjectives / sizeof adjectives[0],
    N_NOUNS = sizeof nouns / sizeof nouns[0],
    N_PAIRS = N_ADJECTIVES * N_NOUNS
};

void synth_item_title(const synth_world *w, uint32_t item, char *text, int n) {
    uint32_t topic = w->topic_of[w->slot_of[item]], number = item - 1;
    /* Pairs are shuffled, so that neighbours do not share a word; when they are used up, a part
     * number is added.  Items of one part differ in the pair, so no title comes twice. */
    permutation pairs = permutation_make(N_PAIRS, w->config.seed, RNG_SYNTH, 0);
    uint32_t pair = (uint32_t)permutation_at(&pairs, number % N_PAIRS), part = number / N_PAIRS;
    const char *adjective = adjectives[pair / N_NOUNS], *noun = nouns[pair % N_NOUNS];
    char topic_part[16] = "", title_part[16] = "";
    if (topic >= N_TOPICS) snprintf(topic_part, sizeof topic_part, " %u", topic / N_TOPICS + 1);
    if (part > 0) snprintf(title_part, sizeof title_part, " %u", part + 1);
    snprintf(text, (size_t)n, "The %s %s%s (%s%s)", adjective, noun, title_part,
             topics[topic % N_TOPICS], topic_part);
}

const char *synth_age_name(int age) {
    static const char *const names[SYNTH_AGES] = {"under 18", "18-24", "25-34",  "35-44",
                                                  "45-54",    "55-64", "over 64"};
    return names[age];
}

const char *synth_country_name(int country) {
    static const char *const names[SYNTH_COUNTRIES] = {"Brazil", "France", "Ghana",  "India",
                                                       "Japan",  "Mexico", "Norway", "Vietnam"};
    return names[country];
}
