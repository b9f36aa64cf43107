"""Common words of operational English: drills draw from them. Nothing else is known here."""

WORDS = """
a ability able about above abroad accept access account accurate across act action active actual add address adjust
advance advice affect after again against age agency agent ago agree agreement ahead air alert all allow almost alone
along already also although always among amount analysis and annual another answer any anyone anything appeal appear
apply approach approve area argue arm around arrange arrive article as ask asset assign assist at attach attack attempt
attend attention author automatic available average avoid away back backup bad balance bank base basic batch be because
become before begin behind believe below benefit best better between beyond bill block blue board body book both bottom
box branch break bring broken brother browser budget build building business busy but buy by cable calculate calendar
call campaign can cancel capacity car card care careful carry case cash catch category cause central certain chain
chair chance change channel chapter character charge chart cheap check child choice choose circle city claim class
clean clear client close cloud cluster code cold collect color column come command comment commit common communicate
company compare complain complaint complete component computer concern condition confirm connect connection consider
contact contain content continue contract control convert cool copy correct cost could count country couple course
court cover crash create credit crew criteria critical current customer cut cycle daily damage danger dark data
database date day dead deadline deal decide decision declare deep default defect delay delete deliver delivery demand
deny department depend deploy deposit describe design desk detail detect develop device did differ difference different
difficult direct disagree discount discuss disk display dispute distance divide do document does dollar domain done
door double doubt down draft drive drop due duplicate during duty each early earn east easy edge edit effect effort
either electric element else email emergency employee empty enable end energy engine engineer enough ensure enter
entire entry equal error escalate especially establish estimate even evening event ever every evidence exact example
except exchange exist expect expense expensive expire explain export express extend external extra face fact fail
failure fall false family far fast father fault feature fee feel few field figure file fill filter final finance find
fine finish fire firm first fit fix flag flat flight floor flow focus follow food for force foreign form formal former
forward found free freight frequent fresh friend from front full function fund further future gain general get give
given glass global go goal gold good goods got grant great green ground group grow growth guarantee guess guest guide
had half hand handle happen happy hard hardware has have he head health hear heart heavy held hello help her here high
him his history hold holiday home hope host hour house how however huge human hundred idea identify if image immediate
impact import important impossible improve in include income incoming increase indeed index indicate industry inform
information initial input inquiry inside install instance instead insurance interest internal international internet
into inventory invest invoice involve is issue it item its itself job join just keep key kind know label lack land
language large last late later latest law lawyer layer lead leak learn least leave left legal length less let letter
level license lie life light like likely limit line link list little live load loan local location lock log long look
lose loss lot low lunch machine mail main maintain major make man manage manager manual manufacture many mark market
master match material matter maximum may me mean measure media medical meet meeting member memory mention message
method middle might million mind minimum minor minute miss mistake mobile mode model modern module moment money monitor
month more morning most mother move much multiple must my name national near necessary need negative network never new
news next night no node none nor normal north not note nothing notice now number object observe obtain occur of off
offer office official often old on once one online only open operate operation operator opinion option or order
organize original other our out outage outside over own owner pack package page paid pain panel paper parcel parent
part particular partner party pass password past patch path patient pattern pause pay payment peak penalty people per
percent perfect perform perhaps period permission person phone photo pick picture piece pipe place plan plant platform
play please point policy poor popular port position positive possible post potential power practice prefer prepare
present pressure prevent previous price primary print priority private problem process produce product production
professional profile profit program progress project promise proof proper property protect protocol prove provide
public pull purchase purpose push put quality quantity quarter query question queue quick quiet quite quota quote
random range rapid rate rather raw reach read ready real reason receipt receive recent recognize recommend record
recover red reduce refer reference refund refuse region register regular reject relate release rely remain remember
remind remote remove renew rent repair repeat replace replica reply report represent request require reserve reset
resolve resource respond response responsible rest restart restore result retry return revenue review right ring rise
risk road role room root route row rule run safe safety said sale same sample satisfy save say scale scan schedule
school science scope score screen search season seat second secret section sector secure security see seem segment
select sell send senior sense separate serial series serious server serve service session set settle several severe
shall share she sheet shift ship shipment shop short should show shut side sign signal similar simple since single site
situation six size skill slow small so social software sold solution some someone something soon sort sound source
south space speak special specific speed spend staff stage standard start state statement station status stay step
still stock stop storage store story street strong structure study subject submit subscribe subscription succeed
success such sudden suffer suggest suitable sum supplier supply support suppose sure surface survey suspend switch
system table take talk target task tax team technical telephone tell temperature temporary ten term test text than
thank thanks that the their them then there therefore these they thing think third this those though thousand threat
three threshold through throughput ticket tight time timeout to today together told token tomorrow tonight too tool top
topic total touch toward track trade traffic train transaction transfer transport travel treat trial trigger trip
trouble truck true trust try turn twice two type typical under understand unexpected unit unknown unless until unusual
up update upgrade upon urgent usage use user usual valid value various vehicle vendor verify version very via victim
video view visit voice volume vote wait walk wall want warehouse warm warn warning warranty was waste watch water way
we weak wear weather website week weekend weight welcome well went were west what wheel when where whether which while
white who whole whom whose why wide will win window wire wish with within without woman word work worker world worry
worse would write wrong year yellow yes yesterday yet you young your zero zone
""".split()
