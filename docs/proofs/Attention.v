(** * Attention, forward and backward, over numbers of any kind

    The definitions are those of the docstrings of [attendax.spec.attention] and [attention_backward]. What the code
    does beyond them, with a NaN or an infinity that a query may look at, is not modelled. No law of arithmetic is
    assumed in this file, so IEEE floats are numbers as well, with their NaN and their rounding. What is proved here
    holds for them bit by bit, and needs no axiom. *)
From Coq Require Import List.
Import ListNotations.
Set Implicit Arguments.
Set Contextual Implicit.

(** ** Numbers and sums *)

(** A kind of numbers: what can be computed, and nothing about what comes out. *)
Record arithmetic := {
  number :> Type; zero : number; one : number;
  add : number -> number -> number; sub : number -> number -> number;
  mul : number -> number -> number; div : number -> number -> number;
  maximum : number -> number -> number;
  e_to : number -> number; log : number -> number; tanh_of : number -> number; root : number -> number }.

Declare Scope number_scope.
Delimit Scope number_scope with number.
Infix "+" := (add _) : number_scope.
Infix "-" := (sub _) : number_scope.
Infix "*" := (mul _) : number_scope.
Infix "/" := (div _) : number_scope.

(** The sum of [f] over a list, from the right; 0 for the empty list. *)
Fixpoint sum {A : arithmetic} {X : Type} (l : list X) (f : X -> A) : A :=
  match l with [] => zero A | a :: l => add A (f a) (sum l f) end.
Notation "'Σ' ( i '∈' l ) f" := (sum l (fun i => f)) (at level 41, i name, l at level 99, f at level 41,
  right associativity, format "'Σ' ( i  '∈'  l )  f").

(** The largest [f] of a list; 0 for the empty list. *)
Fixpoint largest {A : arithmetic} {X : Type} (l : list X) (f : X -> A) : A :=
  match l with [] => zero A | [a] => f a | a :: l => maximum A (f a) (largest l f) end.

Lemma sum_ext {A : arithmetic} {X} (l : list X) (f g : X -> A) : (forall a, In a l -> f a = g a) -> sum l f = sum l g.
Proof. induction l; intro H; cbn; [|rewrite H, IHl by (intros; try apply H; cbn; auto)]; easy. Qed.

Lemma largest_ext {A : arithmetic} {X} (l : list X) (f g : X -> A) :
  (forall a, In a l -> f a = g a) -> largest l f = largest l g.
Proof. induction l; intro H; cbn; [|rewrite H, IHl by (intros; try apply H; cbn; auto)]; easy. Qed.

(** ** Attention

    The axes have the letters of the laws: T queries, S keys, D width of query and key, V width of value; and B for the
    numbers of the bias, P for those in the arrays of the score modifier. Each is any type. Batch and heads have no
    axis: let a query be a triple (batch, head, position), a key a triple (batch, key head, position), and let a query
    be allowed only the keys of its own batch and its own key head (L1). *)
Section Attention.
Context (A : arithmetic) (T S D V B P : Type).

(** The place of one number among all inputs. *)
Inductive place := query (i : T) (d : D) | key (j : S) (d : D) | value (j : S) (c : V) | bias (b : B) | array (p : P).

(** The inputs: a number at each place. Their gradients are of the same type, and so are their speeds. *)
Definition inputs := place -> A.

(** A score modifier (L2): how it changes the score [z] of query [i] and key [j], where its arrays hold the numbers
    [a]; its derivative in [z]; and its derivative in each of these numbers. *)
Record modifier := {
  modify : (P -> A) -> T -> S -> A -> A;
  slope : (P -> A) -> T -> S -> A -> A;
  slope_in : (P -> A) -> T -> S -> A -> P -> A }.

Record options := {                           (* a list for each axis; then what each pair of query and key has *)
  queries : list T; keys : list S; widths : list D; columns : list V; biases : list B; entries : list P;
  allowed : T -> S -> bool;                    (* the mask: true = may look (L3); false as well where a bias is -inf *)
  scale : A;
  score_mod : modifier;
  bias_at : T -> S -> B;                       (* which number of the bias a pair reads; one may serve many pairs *)
  same_bias : forall a b : B, {a = b} + {a <> b};  (* whether two names stand for the same number of the bias *)
  kept : T -> S -> A }.                        (* dropout: 0, or 1 / (1 - rate); 1 without dropout (L10) *)
Arguments same_bias : clear implicits.

Context (o : options) (x : inputs).
Local Open Scope number_scope.

(** *** Forward *)

Definition seen (i : T) : list S := filter (allowed o i) (keys o).                       (* where a query may look *)
Definition arrays : P -> A := fun p => x (array p).
Definition product i j := scale o * Σ (d ∈ widths o) x (query i d) * x (key j d).              (* z = scale q k *)
Definition score i j := modify (score_mod o) arrays i j (product i j) + x (bias (bias_at o i j)).  (* s = mod(z) + b *)
Definition shift i := largest (seen i) (score i).                  (* subtracted so that no exponential overflows *)
Definition total i := Σ (j ∈ seen i) e_to A (score i j - shift i).
Definition weight i j := e_to A (score i j - shift i) / total i.                               (* p = softmax(s) *)
Definition out i c := Σ (j ∈ seen i) weight i j * kept o i j * x (value j c).                  (* out = w v *)
Definition lse i := match seen i with [] => None | _ => Some (shift i + log A (total i)) end.  (* None is -inf (L5) *)

(** *** Backward: from gradients of [out] and [lse] to those of the inputs *)

Record cotangent := { dout : T -> V -> A; dlse : T -> A }.
Context (g : cotangent).

Definition seers (j : S) : list T := filter (fun i => allowed o i j) (queries o).         (* who may look at a key *)
Definition readers i (b : B) : list S :=           (* the keys that query [i] sees with the number [b] of the bias *)
  filter (fun j => if same_bias o (bias_at o i j) b then true else false) (seen i).
Definition grad_weight i j := (Σ (c ∈ columns o) dout g i c * x (value j c)) * kept o i j.     (* dp = dw kept *)
Definition delta i := Σ (j ∈ seen i) grad_weight i j * weight i j.
Definition grad_score i j := weight i j * (grad_weight i j - delta i) + weight i j * dlse g i. (* ds *)

(** From weights [p] and the gradients [ds] of the scores to the gradients of all inputs. *)
Definition gradients (p ds : T -> S -> A) : inputs :=
  let dz i j := ds i j * slope (score_mod o) arrays i j (product i j) in                       (* dz = ds mod'(z) *)
  fun at_ => match at_ with
  | query i d => Σ (j ∈ seen i) scale o * dz i j * x (key j d)
  | key j d => Σ (i ∈ seers j) scale o * dz i j * x (query i d)
  | value j c => Σ (i ∈ seers j) p i j * kept o i j * dout g i c
  | bias b => Σ (i ∈ queries o) Σ (j ∈ readers i b) ds i j
  | array p => Σ (i ∈ queries o) Σ (j ∈ seen i) ds i j * slope_in (score_mod o) arrays i j (product i j) p
  end.
Definition backward : inputs := fun at_ => gradients weight grad_score at_.
End Attention.
Arguments same_bias {A T S D V B P} o a b.

(** ** L5: the empty set *)

Section Laws.
Context {A : arithmetic} {T S D V B P : Type} (o : options A T S D V B P).
Notation inputs := (inputs A T S D V B P).
Implicit Types (x y : inputs) (g : cotangent A T V).

(** A query that may look at no key gets out 0 and lse -inf, and its gradient is 0. *)
Theorem nothing_to_see x g i : seen o i = [] ->
  (forall c, out o x i c = zero A) /\ lse o x i = None /\ (forall d, backward o x g (query i d) = zero A).
Proof. intro E; unfold out, lse; cbn; rewrite E; repeat split. Qed.

(** A key that no query may look at has gradient 0, and so has its value. *)
Theorem nobody_sees x g j : seers o j = [] ->
  (forall d, backward o x g (key j d) = zero A) /\ (forall c, backward o x g (value j c) = zero A).
Proof. intro E; cbn; rewrite E; split; reflexivity. Qed.

(** ** L6: what is masked cannot matter *)

(** The inputs of two calls are the same wherever query [i] may look. Elsewhere they may be anything: NaN, or 1e30. *)
Definition same_view x y i := forall j, In j (seen o i) ->
  (forall d, x (query i d) = y (query i d)) /\ (forall d, x (key j d) = y (key j d)) /\
  (forall c, x (value j c) = y (value j c)) /\ x (bias (bias_at o i j)) = y (bias (bias_at o i j)).

Section Row.
Context {x y : inputs} (same_arrays : arrays x = arrays y) (g : cotangent A T V) {i : T} (same : same_view x y i).
Lemma same_product j : In j (seen o i) -> product o x i j = product o y i j.
Proof. intro J; destruct (same J) as (Q & K & _); unfold product; f_equal; apply sum_ext; intros; now rewrite Q, K. Qed.
Lemma same_score j : In j (seen o i) -> score o x i j = score o y i j.
Proof. intro J; unfold score; rewrite same_arrays, same_product by easy; f_equal; now apply same. Qed.
Lemma same_shift : shift o x i = shift o y i.
Proof. apply largest_ext, same_score. Qed.
Lemma same_total : total o x i = total o y i.
Proof. apply sum_ext; intros; now rewrite same_score, same_shift. Qed.
Lemma same_weight j : In j (seen o i) -> weight o x i j = weight o y i j.
Proof. intro; unfold weight; now rewrite same_score, same_shift, same_total. Qed.
Lemma same_grad_weight j : In j (seen o i) -> grad_weight o x g i j = grad_weight o y g i j.
Proof. intro J; unfold grad_weight; f_equal; apply sum_ext; intros; f_equal; now apply (same J). Qed.
Lemma same_delta : delta o x g i = delta o y g i.
Proof. apply sum_ext; intros; now rewrite ?same_weight, ?same_grad_weight. Qed.
Lemma same_grad_score j : In j (seen o i) -> grad_score o x g i j = grad_score o y g i j.
Proof. intro; unfold grad_score; now rewrite ?same_weight, ?same_grad_weight, ?same_delta. Qed.

(** Forward: no bit of a query's out or lse depends on what that query may not look at. *)
Theorem masked_cannot_matter : (forall c, out o x i c = out o y i c) /\ lse o x i = lse o y i.
Proof.
  split; [|unfold lse; now rewrite same_total, same_shift].
  intro c; apply sum_ext; intros j J; rewrite same_weight by easy; f_equal; now apply (same J).
Qed.
End Row.

(** The queries that a gradient comes from. For a number of the bias: those that see some key with it. *)
Definition comes_from (at_ : place T S D V B P) i :=
  match at_ with
  | query k _ => i = k
  | key j _ | value j _ => In i (seers o j)
  | bias b => In i (queries o) /\ readers o i b <> []
  | array _ => In i (queries o)
  end.
Definition of_this_call (at_ : place T S D V B P) :=                     (* a key or a value is one of the list *)
  match at_ with key j _ | value j _ => In j (keys o) | _ => True end.

(** A gradient depends only on what stands at the pairs that it comes from. *)
Lemma gradients_ext x y g p p' ds ds' at_ : arrays x = arrays y -> of_this_call at_ ->
  (forall i, comes_from at_ i -> same_view x y i /\ forall j, In j (seen o i) -> p i j = p' i j /\ ds i j = ds' i j) ->
  gradients o x g p ds at_ = gradients o y g p' ds' at_.
Proof.
  intros E K H; assert (seers_see : forall i j, In j (keys o) -> In i (seers o j) -> In j (seen o i)).
  { intros i j J I; apply (filter_In (fun i => allowed o i j)) in I; now apply filter_In. }
  assert (same : forall i j, comes_from at_ i -> In j (seen o i) -> p i j = p' i j /\ ds i j = ds' i j /\
    (forall d, x (query i d) = y (query i d)) /\ (forall d, x (key j d) = y (key j d)) /\
    product o x i j = product o y i j).
  { intros i j I J; destruct (H i I) as [view pd], (view j J) as (? & ? & _), (pd j J); auto 7 using same_product. }
  destruct at_ as [i d | j d | j c | b | a]; cbn; apply sum_ext; [intros j J | intros i I ..].
  - destruct (same i j eq_refl J) as (? & D' & Q & K' & Z); now rewrite ?D', ?Q, ?K', ?Z, ?E.
  - destruct (same i j I (seers_see _ _ K I)) as (? & D' & Q & K' & Z); now rewrite ?D', ?Q, ?K', ?Z, ?E.
  - destruct (same i j I (seers_see _ _ K I)) as (P' & _); now rewrite ?P'.
  - apply sum_ext; intros j J; assert (N : readers o i b <> []) by (intro N; now rewrite N in J).
    apply filter_In in J as [J _]; destruct (same i j (conj I N) J) as (? & D' & ? & ? & Z); now rewrite ?D', ?Z, ?E.
  - apply sum_ext; intros j J; destruct (same i j I J) as (_ & D' & _ & _ & Z); now rewrite ?D', ?Z, ?E.
Qed.

(** Backward: no bit of a gradient depends on what the queries that it comes from may not look at. *)
Theorem masked_cannot_matter_backward x y g at_ : arrays x = arrays y -> of_this_call at_ ->
  (forall i, comes_from at_ i -> same_view x y i) -> backward o x g at_ = backward o y g at_.
Proof. intros E K H; apply gradients_ext; auto; intros i I; split; auto using same_weight, same_grad_score. Qed.
End Laws.
