"""What a caller hears for the English text that a call-centre bot writes."""

from __future__ import annotations

import pytest

from telephony_tts.text.normalizer import normalize

ENGLISH = [
    # codes and telephone numbers: digit by digit
    ("Your verification code is 482913.", "Your verification code is four eight two nine one three."),
    ("482913 is your verification code.", "four eight two nine one three is your verification code."),
    ("Your PIN is 0042.", "Your PIN is zero zero four two."),
    ("ZIP code 90210-1234", "ZIP code nine zero two one zero, one two three four"),
    ("Call 1-800-555-0199.", "Call one, eight zero zero, five five five, zero one nine nine."),
    ("(415) 555-2671 ext. 42", "four one five, five five five, two six seven one, extension four two"),
    ("0044 20 7946 0958", "zero zero four four, two zero, seven nine four six, zero nine five eight"),
    ("0033 1 23 45 67 89", "zero zero three three, one, two three, four five, six seven, eight nine"),
    ("005 10 20 mg", "zero zero five ten twenty milligrams"),
    ("Press *1 or #9. Claim #9", "Press star one or pound nine. Claim number nine"),
    ("Press 1, #4815 is yours", "Press one, number four eight one five is yours"),
    ("Jan-Mar 2026, Nov–Dec.", "January to March twenty twenty six, November to December."),
    ("Thanks, Jan - May I ask", "Thanks, Jan - May I ask"),
    ("we may-march on", "we may-march on"),
    ("+44 20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight"),
    ("Call 1-800-FLOWERS", "Call one, eight zero zero, FLOWERS"),
    ("Dial 911 now.", "Dial nine one one now."),
    ("We have 911 customers and 911 operators.", "We have nine hundred eleven customers and nine one one operators."),
    ("only 911 works, VoIP has 911 access", "only nine one one works, VoIP has nine one one access"),
    # amounts and quantities with a decimal comma; lists, codes and versions have commas too
    ("Your bill is 1.299,00 €.", "Your bill is one thousand two hundred ninety nine euros."),
    ("€1.299,50", "one thousand two hundred ninety nine euros and fifty cents"),
    ("EUR 49,90 or 0,50 euros", "forty nine euros and ninety cents or fifty cents"),
    ("49,90-59,90 €", "forty nine euros and ninety cents to fifty nine euros and ninety cents"),
    ("2.500 €/month", "two thousand five hundred euros per month"),
    ("1.800 €/l, 25 €/month", "one point eight zero zero euros per liter, twenty five euros per month"),
    ("12,5 % of 1,5 GB", "twelve point five percent of one point five gigabytes"),
    ("-0,5°C, 3,5 million", "minus zero point five degrees Celsius, three point five million"),
    ("from 12,5 to 13,5 percent", "from twelve point five to thirteen point five percent"),
    ("5,10,20 GB, 5,10,15%", "five,ten,twenty gigabytes, five,ten,fifteen percent"),
    ("options 1,2 and 3, gates 11,12B", "options one,two and three, gates eleven,twelve B"),
    ("Your code is 12,34-56,78.", "Your code is twelve,three four, five six,seventy eight."),
    ("$1,299, 1,25,000", "one thousand two hundred ninety nine dollars, one lakh twenty five thousand"),
    ("10,20,30", "ten,twenty,thirty"),
    ("Order #4815 shipped", "Order number four eight one five shipped"),
    ("ORD-2024-00123", "O R D two zero two four, zero zero one two three"),
    ("Flight BA1234 leaves", "Flight B A. one two three four leaves"),
    ("your card ending in 8876", "your card ending in eight eight seven six"),
    ("card xxxx-xxxx-xxxx-4821", "card four eight two one"),
    ("Account: ****4821", "Account: four eight two one"),
    ("account 123456789", "account one two three four five six seven eight nine"),
    ("extension 204 or 305", "extension two zero four or three zero five"),
    ("Room 302, room 12", "Room three zero two, room twelve"),
    ("code 48-29-13", "code four eight, two nine, one three"),
    ("4111 1111 1111 1111", "four one one one, one one one one, one one one one, one one one one"),
    ("0042", "zero zero four two"),
    ("The PIN you entered, 4477, is wrong.", "The PIN you entered, four four seven seven, is wrong."),
    ("Springfield, IL 62704", "Springfield, IL six two seven zero four"),
    ("last four digits of your card are 9876", "last four digits of your card are nine eight seven six"),
    ("text STOP to 12345", "text STOP to one two three four five"),
    # the same words before a count
    ("The code expires in 10 minutes.", "The code expires in ten minutes."),
    ("Order 12 items", "Order twelve items"),
    ("order 1500 units", "order one thousand five hundred units"),
    ("a 4-digit PIN", "a four digit PIN"),
    # names with digits
    ("COVID-19, 5G, MP3, B2B", "COVID nineteen, five G, M P three, B to B"),
    ("a 24-hour line, a 100-day trial", "a twenty four hour line, a one hundred day trial"),
    # amounts
    ("$1,234.50", "one thousand two hundred thirty four dollars and fifty cents"),
    ("$1.01, $0.99, $10, £0.50", "one dollar and one cent, ninety nine cents, ten dollars, fifty pence"),
    ("-$45.30", "minus forty five dollars and thirty cents"),
    (
        "$2.5M, $3k, €19.99",
        "two point five million dollars, three thousand dollars, nineteen euros and ninety nine cents",
    ),
    ("$5-$10, $5-10", "five dollars to ten dollars, five to ten dollars"),
    ("20 USD, 99¢", "twenty U S dollars, ninety nine cents"),
    ("$15/month at $0.12/kWh", "fifteen dollars per month at twelve cents per kilowatt hour"),
    # dates, years, times
    ("due 12/31/2024", "due December thirty first, twenty twenty four"),
    ("12/31", "December thirty first"),
    ("2024-08-05", "August fifth, twenty twenty four"),
    ("31.12.2024", "December thirty first, twenty twenty four"),
    ("Jan 5, 2025", "January fifth, twenty twenty five"),
    ("the 25th of December 2024", "the twenty fifth of December, twenty twenty four"),
    ("Dec 25–27", "December twenty fifth to twenty seventh"),
    ("in 1999 and 2008", "in nineteen ninety nine and two thousand eight"),
    ("the 1990s and the '80s", "the nineteen nineties and the eighties"),
    (
        "Between 1990 and 1995, 2024 was best",
        "Between nineteen ninety and nineteen ninety five, twenty twenty four was best",
    ),
    ("version 3.10.12", "version three point ten point twelve"),
    ("2010-2015", "twenty ten to twenty fifteen"),
    ("at 3:05 PM", "at three oh five PM"),
    ("at 10:30 a.m. Please come", "at ten thirty AM. Please come"),
    ("9am-5pm, 9-5pm", "nine AM to five PM, nine to five PM"),
    ("17:30, 12:00, 00:30", "seventeen thirty, twelve o'clock, twelve thirty AM"),
    ("Mon-Fri 24/7", "Monday to Friday twenty four seven"),
    # numbers and units
    ("1,000,000 users", "one million users"),
    ("-2, 0.05, 23rd, 1,000th", "minus two, zero point zero five, twenty third, one thousandth"),
    ("25% off, 5-10% more", "twenty five percent off, five to ten percent more"),
    ("1/2, 3/4, 2 1/2, 1½", "one half, three quarters, two and a half, one and a half"),
    ("ratio 3:1", "ratio three to one"),
    ("BP 120/80", "BP one hundred twenty over eighty"),
    ("5kg, 1 lb, 60 mph, 256GB", "five kilograms, one pound, sixty miles per hour, two hundred fifty six gigabytes"),
    ("-5°C to 10°C", "minus five degrees Celsius to ten degrees Celsius"),
    ("100 Mbps, 10 m²", "one hundred megabits per second, ten square meters"),
    ("250mg/5ml, rated 4.8/5", "two hundred fifty milligrams per five milliliters, rated four point eight out of five"),
    ("5 lb. of flour, 1.5-mm parts", "five pounds of flour, one point five millimeter parts"),
    ("wait—what", "wait—what"),
    ("4-6 hours", "four to six hours"),
    (
        "12345678901234567890",
        "one two three four five six seven eight nine zero one two three four five six seven eight nine zero",
    ),
    # signs and addresses
    ("R&D, AT&T", "R and D, AT and T"),
    ("press # or *", "press pound or star"),
    ("5 + 3 = 8", "five plus three equals eight"),
    ("yes/no and/or", "yes or no and or"),
    ("#winning", "hashtag winning"),
    ("john.smith_99@my-bank.com", "john dot smith underscore nine nine at my dash bank dot com"),
    ("Visit https://www.example.com/track.", "Visit w w w dot example dot com slash track."),
    ("192.168.1.1", "one nine two dot one six eight dot one dot one"),
    ("version v2.10.3", "version two point ten point three"),
    # telephone numbers that end in zeros, and counts that do
    ("Reach me at 4155552000", "Reach me at four one five five five five two zero zero zero"),
    ("5000000 people, 1000000000 users", "five million people, one billion users"),
    # India: lakhs and crores, rupees
    ("₹5,25,000", "five lakh twenty five thousand rupees"),
    ("INR 1,25,340.50", "one lakh twenty five thousand three hundred forty rupees and fifty paise"),
    ("₹1,00,000", "one lakh rupees"),
    ("Rs. 12,500 or Rs 250.50", "twelve thousand five hundred rupees or two hundred fifty rupees and fifty paise"),
    ("₹1.5 lakh, 2 crore", "one point five lakh rupees, two crore"),
    ("1,2,3 and 100,200", "one,two,three and one hundred thousand two hundred"),
    ("Your balance is -₹500.", "Your balance is minus five hundred rupees."),
    # ranges of dates, and times and years in other forms
    (
        "valid 12/05/2026-12/09/2026",
        "valid December fifth, twenty twenty six to December ninth, twenty twenty six",
    ),
    ("12/05-12/09", "December fifth to December ninth"),
    ("2026-03-05-2026-03-08", "March fifth, twenty twenty six to March eighth, twenty twenty six"),
    ("order 12-05-2026-7", "order one two, zero five, two zero two six, seven"),
    ("opens at 9.30am, costs 9.30", "opens at nine thirty AM, costs nine point three zero"),
    ("in the mid-1990s", "in the mid nineteen nineties"),
    ("Your meeting is at 10 a.m. EST.", "Your meeting is at ten AM E S T."),
    ("est. 5 minutes. Call the billing dept.", "estimated five minutes. Call the billing department."),
    (">90% of calls", "greater than ninety percent of calls"),
    ("123 Maple Dr. with Dr. Lee", "one hundred twenty three Maple Drive with Doctor Lee"),
    # lengths of time
    (
        "a delay of 1h 45m, 5h30m, 3d 4h, 2m 30s",
        "a delay of one hour forty five minutes, five hours thirty minutes, three days four hours, "
        "two minutes thirty seconds",
    ),
    (
        "Wait time: 00:05:30, call lasted 12:34",
        "Wait time: five minutes thirty seconds, call lasted twelve minutes thirty four seconds",
    ),
    ("a 500m walk at 00:05", "a five hundred meter walk at twelve oh five AM"),
    ("in the 30s, hold 30s", "in the thirties, hold thirty seconds"),
    # a plus sign before an amount, keys, and the end of a card number
    (
        "up +1.25%, +150 points, +12.50",
        "up plus one point two five percent, plus one hundred fifty points, plus twelve point five zero",
    ),
    (
        "Visa *4821 ending in *0093, card ...4821, $9.99*",
        "Visa four eight two one ending in zero zero nine three, "
        "card ...four eight two one, nine dollars and ninety nine cents",
    ),
    ("dial *67 or *#06#, dial *611#", "dial star six seven or star pound zero six pound, dial star six one one pound"),
    ("#04-123", "number zero four, one two three"),
    # ranges
    (
        "$1.5-$2.5M, $1 to $2 million, $500 to $1M",
        "one point five to two point five million dollars, "
        "one to two million dollars, five hundred dollars to one million dollars",
    ),
    ("seats 14A-14C, gates A1-A10, Q1-Q3", "seats fourteen A. to fourteen C, gates A. one to A. ten, Q one to Q three"),
    ("2026-27, 2026/27", "twenty twenty six to twenty twenty seven, twenty twenty six to twenty twenty seven"),
    ("2-1/2 inches, 8.5 x 11", "two and a half inches, eight point five by eleven"),
    ("expires 05/2028, Sunday 4/7", "expires May twenty twenty eight, Sunday April seventh"),
    # names of numbers
    ("401(k), $401k", "four oh one K, four hundred one thousand dollars"),
    ("Boeing 737-800", "Boeing seven three seven, eight zero zero"),
    ("311 or 911 now, 911 items", "three hundred eleven or nine one one now, nine hundred eleven items"),
    ("Error 404, 100K users", "Error four zero four, one hundred thousand users"),
    (
        "1300 123 456, 001-415-555-0132",
        "one three zero zero, one two three, four five six, "
        "zero zero one, four one five, five five five, zero one three two",
    ),
    # a unit before a noun, quantities of things
    (
        "a $5 fee, a 10GB plan, a $5.50 toll",
        "a five dollar fee, a ten gigabyte plan, a five dollar and fifty cent toll",
    ),
    ("Not a $5 or $10 fee", "Not a five dollar or ten dollar fee"),
    ("2 x Large Fries, 3 x 50mg, 3x Points", "two Large Fries, three times fifty milligrams, three times Points"),
    ("10 / 2, $500/$1,000", "ten divided by two, five hundred dollars, one thousand dollars"),
    # days and streets
    ("Sat 9am, Mon, Wed & Fri, the sun", "Saturday nine AM, Monday, Wednesday and Friday, the sun"),
    ("M-F 8-6, by 5 p.m. Pacific", "Monday to Friday eight to six, by five PM Pacific"),
    ("1455 Market St, 5th Ave, St Ives", "fourteen fifty five Market Street, fifth Avenue, St Ives"),
    # markup
    ("**$29.00**", "twenty nine dollars"),
    ("Press (**1**) to confirm.", "Press (one) to confirm."),
    ("[3 items](http://x.example/1)", "three items"),
    ("<b>$5</b> now 😀", "five dollars now "),
]


@pytest.mark.parametrize(("written", "spoken"), ENGLISH)
def test_english(written: str, spoken: str) -> None:
    assert normalize(written, "en") == spoken
