"""What teams, tools and statuses are about: names, descriptions, and what people write when it concerns them.

Tables only, one topic a line: `names | descriptions | sentences`, alternatives separated by semicolons. What UNSEEN tables
hold is asked in held-out records alone; no training record has one of its names for an option.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One option in all its wordings."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    sentences: tuple[str, ...]


def _table(text: str) -> tuple[Topic, ...]:
    topics = []
    for line in text.strip().splitlines():
        names, descriptions, sentences = ([part.strip() for part in cell.split(";")] for cell in line.split("|"))
        topics.append(Topic(names=tuple(names), descriptions=tuple(descriptions), sentences=tuple(sentences)))
    return tuple(topics)


TEAMS = _table("""
billing;invoicing;accounts | invoices and charges; wrong amounts on a bill; card payments and charges | I was charged twice this month; the invoice shows a wrong amount; my card was billed although I paid already; the bill is higher than we agreed
shipping;delivery;dispatch | parcels and their delivery; tracking of shipments; late or lost parcels | my parcel has not arrived; the tracking page has not moved for days; the courier left the package in the rain; the delivery went to a wrong address
returns;goods back | goods that are sent back; return labels and exchanges | I want to send the blanket back; the return label cannot be printed; it is too small, I send it back; where do I send the item back to
technical support;helpdesk;tech support | errors in the program; software that crashes or hangs; help with installation | the app crashes when I open it; an error message appears at start; the installation stops halfway; the program hangs after the update
sales;new business | quotes and prices for new customers; buying licences | we would like a quote for 40 licences; what does the larger plan cost; can someone show us the product before we buy; we want to buy more seats
security;abuse | suspicious logins and stolen passwords; phishing and breaches | somebody logged in to my account from abroad; I received a phishing mail in your name; my password was stolen; we found a breach of our data
legal;contracts | contracts and clauses; court cases and lawyers | our lawyer has a question on clause 4; please send the signed contract; we dispute the terms of the agreement; the court asks for your statement
human resources;personnel;people team | holidays and sick leave of employees; salaries and hiring | I would like to take holiday in May; my salary slip is missing; I am on sick leave until Friday; an employee asks about parental leave
facilities;building services | rooms, heating and lights of the office; cleaning and keys | the heating in the office is broken; the light in the meeting room flickers; the door to the second floor does not lock; the kitchen needs cleaning
marketing;communications | campaigns, newsletters and press; advertising | a journalist asks for a comment; please take me off the newsletter; the campaign banner has a typing error; we want to advertise at the fair
procurement;purchasing | orders from our suppliers; offers of vendors | the supplier raised the price of steel; we need three offers from vendors; please order new laptops from the vendor; the purchase order for paper is missing
warehouse;stock;inventory | stock levels and shelves; counting of goods | the shelf count does not match the stock; we are out of stock of lens kits; goods were put on the wrong shelf; the scanner in the warehouse shows nothing
training;learning | courses and workshops; certificates of attendance | when is the next course for beginners; I never got my certificate for the workshop; the webinar recording is missing; please book two places in the seminar
quality;quality control | defects of our products; inspections and tests | the wrench broke at first use; three tiles have cracks; the inspection found a defect; the glaze comes off after one wash
account management;key accounts | changes of a customer's details; renewals and plans | please change our company address; we want to renew the plan; who is our contact now; add a user to our account
privacy;data protection | deletion and disclosure of personal data; consent | delete all personal data you hold on me; which data do you store about me; I withdraw my consent; send me a copy of my personal data
database;data storage;databases | databases and their storage; slow queries and replication | the query on the orders table takes minutes; replication to the replica is behind; the postgresql volume is nearly full; a table is locked and transactions wait
network;networking;connectivity | links, routers and load balancers; packet loss and DNS | packets are lost between the two sites; the router in rack 4 restarts; the load balancer drops connections; DNS names do not resolve
application;web shop;frontend | the web site and its pages; the checkout of the shop | the checkout page shows a blank screen; the search box of the shop returns nothing; pages load without pictures; the login form rejects everyone
platform;infrastructure;cluster operations | clusters, containers and nodes; deployments | a node of the cluster is not ready; the containers restart in a loop; the deployment is stuck; the scheduler cannot place pods
storage;backup;backups | backups and snapshots; file servers | the nightly backup failed; the snapshot cannot be restored; the file server is read only; the tape library reports an error
mail;messaging;mail systems | mail servers and queues; spam filters | outgoing mail waits in the queue; the spam filter holds every message; mailboxes cannot be opened; bounces come back for all mail
identity;access management;directory | logins, passwords and permissions; single sign-on | a new colleague has no permission; single sign-on returns an error; my password must be reset; the account is locked after three attempts
data analytics;reporting;business intelligence | dashboards and reports; figures and metrics | the dashboard shows old figures; last month's report is empty; the metric for visits is wrong; the chart has no data for June
telephony;phones;call centre | phone lines and calls; headsets | the phone line is dead; callers hear nothing; calls drop after a minute; my headset does not ring
payments;payment processing | card terminals and payouts; refused cards | the card terminal refuses every card; the payout has not reached our bank; the payment page times out; a bank transfer was rejected
mobile;mobile apps | the app on phones and tablets; push notices | the phone app does not show push notices; the tablet version has no menu; the app cannot be found in the store; after the update the phone app logs me out
events;conferences | fairs, conferences and invitations; tickets for visitors | our booth at the fair has no power; I need an invitation for the conference; how many visitors are expected; the speaker cancelled her talk
""")

UNSEEN_TEAMS = _table("""
translation;language services | documents that must be translated; manuals in another language | the German manual has not been translated; we need the document translated into Spanish; the language of the manual is wrong; the translated document has errors
fleet;vehicles;motor pool | company cars, vans and trucks; repair and fuel of vehicles | the van needs a repair; the company car lost a wheel; two trucks need fuel cards; the vehicle failed its inspection
laboratory;lab services | samples and measurements; chemical tests | the samples have not been measured; the test of the water sample is late; the measurement of sample 12 looks wrong; we sent chemical samples on Monday
insurance;claims | damage that an insurance pays; accidents and policies | we report damage after an accident; the insurance policy must cover the water damage; when does the insurance pay for the accident; the policy number is missing on the claim
tax;customs;duties | taxes, customs and import duties; tax forms | customs holds our import; which tax form do we need; the import duty was calculated wrongly; the tax office asks for a form
catering;canteen | lunch, coffee and meals; food for meetings | the lunch was cold; we need coffee for twelve people in the meeting; the canteen meals have no vegetarian food; please order food for the meeting
medical;health service | first aid and medicine; doctors and patients | a patient waits for the doctor; the first aid box is empty; the medicine must be kept cold; the doctor cannot see the patient today
research;science | experiments and studies; papers and scientists | the experiment must be repeated; the study needs more scientists; please review our paper; the results of the study are in
music;audio production | sound recordings and songs; microphones and studios | the recording has no sound; the song is too loud; we need two microphones in the studio; the sound of the recording cracks
farming;agriculture | fields, crops and animals; tractors | the tractor stands in the field; the crops need water; the animals broke the fence; the harvest of the crops is early
aviation;flight operations | flights, pilots and airports; aircraft | the flight was moved to another airport; the pilot is late for the flight; the aircraft needs a new seat; our airport slot is gone
gardening;grounds | trees, lawns and flowers; paths and fences outside | a tree fell on the path; the lawn is dry; the flowers at the gate need water; the fence outside is broken
""")

TOOLS = _table("""
send email;compose mail;mail message | writes a message and sends it by mail; sends an email to a person | send Ana a mail that I am late; write an email to the supplier; mail the report to Jonas; let Petra know by email that we agree
create event;add calendar entry;schedule meeting | puts a meeting in the calendar; books a time for an appointment | put a meeting with Hana in my calendar; schedule a call for Tuesday at three; book an appointment with the dentist; block two hours tomorrow for the review
get weather;weather forecast | tells the weather of a place; forecast of rain, wind and temperature | will it rain in Bergen tomorrow; how warm is it in Porto; do I need an umbrella today; what is the weather like in Graz
search web;web search | looks something up on the internet; finds pages on a subject | look up who invented the zip; find pages about wool; search the internet for cheap desks; what do people write about the new lens
set reminder;remind me | reminds the user of something at a time | remind me to water the plants; do not let me forget the parcel; remind me at five to call Noor; I must remember the milk
convert currency;exchange rate | converts an amount of money to another currency | how many dollars are 50 euros; convert 300 francs to pounds; what is a euro worth in yen; exchange 20 pounds to euros
translate text;translate | says a text in another language | how do you say thank you in Polish; translate this sentence to French; what does the German word mean; put the letter into Spanish
play music;start playback | plays a song, an album or a playlist | play some jazz; I want to hear my running playlist; put on a quiet song; start the album from yesterday
turn on lights;set lights;light control | switches lamps on and off; makes a room bright or dark | it is too dark in the kitchen; switch off the lamp in the hall; make the bedroom brighter; turn on the lights at the door
set thermostat;heating control | changes the temperature of a room | it is too cold in here; set the heating to 21 degrees; make the living room warmer; turn the heating down at night
find restaurant;restaurant search | looks for places to eat | where can we eat fish tonight; find a cheap place for lunch; is there a good pizza near the station; we are hungry, what is open now
book taxi;order ride | orders a car that takes the user somewhere | get me a cab to the airport; I need a ride home at ten; order a taxi for four people; send a car to the office
get directions;route planner;navigate | shows the way from one place to another | how do I get to the museum; show me the way to the harbour; what is the fastest route to Ghent; walk or bus to the station
create ticket;open ticket;file bug | opens a ticket for an error or a wish | file a bug that the menu is empty; open a ticket for the broken printer; report the login error to support; log an issue for the blank page
query orders;order status;track order | tells where an order is and when it arrives | where is order 5512; when does my order arrive; has the order been shipped; check what happened to my order
refund payment;issue refund | gives money back to a customer | give the customer the money back; refund the second charge; pay back 30 euros to Lior; return the amount to her card
cancel subscription;end subscription | ends a plan of a customer | stop my monthly plan; I want to end the subscription; cancel the membership at the end of May; do not renew my plan
reset password;new password | lets a user choose a new password | I forgot my password; Emre cannot log in, give him a new password; reset the password of the test account; my password no longer works
run query;query database | reads rows from the database | how many rows has the customers table; select all users from Lyon; count the orders of last week; show the ten newest rows
restart service;restart | stops a service and starts it again | restart the mailer; the gateway hangs, start it again; bounce the search service; please reboot the ledger service
read file;open file | shows what a file holds | what is in the notes file; show me the config file; open readme and read it; print the first lines of the log file
delete file;remove file | deletes a file for good | delete the old draft; remove the temporary files; throw the copy away; erase report_old
calculate;calculator | computes with numbers | what is 17 times 23; add 18 and 44; how much is 12 percent of 90; divide 144 by 9
create invoice;new invoice | writes an invoice for a customer | bill Halvik for March; write an invoice over 400 euros; make an invoice for the repair; charge the customer for two hours
""")

UNSEEN_TOOLS = _table("""
track flight;flight status | tells when a flight lands or departs; flight numbers and gates | when does flight 482 land; has the flight to Turin departed; which gate does the flight leave from; is the flight late
find recipe;recipe search | finds recipes and ingredients for cooking a dish | a recipe with onions please; how long do I cook the soup; which ingredients need I for the cake; I want to cook a dish with rice
print document;printer | prints documents on paper | print the document twice; I need this page on paper; print both sides of the letter; send the pages to the printer
take photo;camera | takes a picture with the camera | take a picture of us; use the camera now; a photo of the whiteboard please; camera, take a picture in three seconds
measure distance;distance | measures how far two points are apart in kilometers | how far is the lake from here; measure the distance between the two points; how many kilometers is it to the coast; the distance from the gate to the tree
order groceries;grocery order | orders food and milk from the supermarket | we need milk and bread from the supermarket; order eggs and food for the week; put apples on the supermarket order; the milk is gone, order some
lock door;door lock | locks and unlocks doors of the house | lock the front door; is the door of the house locked; unlock the door for Uma; lock all the doors at night
record expense;expense report | notes what was spent on travel and meals | note 14 euros spent on a meal; add the travel costs to my expenses; I spent 60 on fuel; put the hotel on the expense report
scan virus;virus scan | scans a computer for viruses and malware | scan the computer for a virus; is there malware on my laptop; check the disk for viruses; the computer acts strange, scan it
rename branch;git rename | gives a branch of the repository another name | give the branch a better name; the branch must be named stable; rename my branch in the repository; the repository has a branch with a wrong name
""")

STATUSES = _table("""
paid;settled;paid in full | the full amount has been received; payment is complete; nothing is left to pay | We received the full payment on {later}; The amount was paid in full on {later}, thank you; Payment of the whole sum arrived on {later}; Your transfer for the full total reached us on {later}; Paid in full
unpaid;open;outstanding | no payment has been received; nothing has been paid; the whole amount is still owed | We have still not received any payment; No payment has arrived so far; To this day nothing has been paid; The whole amount is still owed; We have not received your payment for this invoice
partially paid;part paid;partial payment | a part of the amount has been received; some was paid and the rest is missing | You paid {part} so far, the rest is missing; We received {part}, which is only a part of the total; A first instalment of {part} has arrived, the remainder has not; Only {part} was paid
disputed;contested;in dispute | the customer contests the invoice; the buyer does not agree with the charge | We do not accept this invoice; We contest the fuel surcharge and will not pay before it is corrected; The customer objects to the amount; The buyer says that the goods never came and disputes the invoice
cancelled;voided;void | the invoice is no longer valid; the invoice was withdrawn | This invoice has been cancelled, please ignore it; The invoice was withdrawn and is void; We have cancelled the order and the invoice with it; Please destroy this invoice, it is no longer valid
refunded;paid back;money returned | the money went back to the customer; the amount was returned | The whole amount was refunded to your account on {later}; We have returned the money to you; The payment went back to the customer on {later}; You got your money back
draft;not sent;in preparation | the invoice is still being written; it has not been sent | This is a draft and has not been sent yet; The invoice is still being written; Draft for internal review, do not send; The invoice is in preparation
awaiting approval;approval pending;to be approved | a manager must approve it first; it waits for approval | The invoice waits for approval by the manager; {person} must approve it before we pay; Approval is still pending; Not yet approved by the head of the department
scheduled;payment planned;payment scheduled | the payment is planned for a later day; a transfer is scheduled | The transfer is scheduled for {later}; Payment is planned for {later}; The bank will execute the payment on {later}; We will pay it with the next run on {later}
""")

UNSEEN_STATUSES = _table("""
sent to collection;in collection;collections | an agency collects the debt; the debt was given to collectors | The debt was given to a collection agency; An agency now collects the amount; Collectors have taken over the debt; The agency for debt collection has the case
duplicate;double entry | the same invoice was entered twice; a copy of another invoice | The same invoice was entered twice; It is a copy of an invoice that was entered before; Entered twice by mistake, the other copy counts; This is the same as another invoice, a double
written off;bad debt | the amount is given up as a loss | The amount was given up as a loss; Management wrote it off as a loss; We give the debt up and book a loss; Booked as a loss, nothing will come
lost in mail;never delivered | the letter with the invoice got lost; the letter came back | The letter with the invoice got lost; Our letter came back from the post; The letter never reached the customer and is lost; The post lost the letter
under audit;audited | auditors are looking at the invoice; an audit is going on | Auditors are looking at this invoice; An audit of the invoice is going on; The audit has not ended; The auditors have asked for the papers of this invoice
""")
