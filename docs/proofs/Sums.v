(** * Sums of real numbers, and how they move *)
From Coq Require Import List Bool Reals Lra Permutation.
From Coquelicot Require Import Coquelicot.
From Attendax Require Import Attention.
Import ListNotations.
Set Implicit Arguments.
Local Open Scope R_scope.

(** The real numbers of Coq's library, as a kind of numbers. *)
Canonical reals : arithmetic := {|
  number := R; zero := 0; one := 1; add := Rplus; sub := Rminus; mul := Rmult; div := Rdiv; maximum := Rmax;
  e_to := exp; log := ln; tanh_of := tanh; root := sqrt |}.

(** Write what is computed with [reals] in the library's own words. *)
Ltac in_reals :=
  change (add reals) with Rplus in *; change (sub reals) with Rminus in *; change (mul reals) with Rmult in *;
  change (div reals) with Rdiv in *; change (e_to reals) with exp in *; change (log reals) with ln in *;
  change (tanh_of reals) with tanh in *; change (root reals) with sqrt in *;
  change (zero reals) with 0 in *; change (one reals) with 1 in *; change (number reals) with R in *.

(** Prove an equation of real numbers by the laws of a ring, or of a field. *)
Ltac algebra := cbv beta; in_reals; match goal with |- ?a = ?b => change (@eq R a b) end; ring.
Ltac fractions := cbv beta; in_reals; match goal with |- ?a = ?b => change (@eq R a b) end; field; try lra.

(** ** Laws of sums *)

Section Sums.
Context {X Y : Type}.
Implicit Types (l : list X) (f g : X -> R).

Lemma sum_cons a l f : sum (a :: l) f = f a + sum l f.
Proof. reflexivity. Qed.

Lemma sum_zero l f : (forall a, In a l -> f a = 0) -> sum l f = 0.
Proof.
  induction l as [|a l IH]; intro H; [reflexivity|]; rewrite sum_cons, IH, H; [lra | now left|].
  intros; apply H; now right.
Qed.

Lemma sum_plus l f g : Σ (a ∈ l) (f a + g a) = sum l f + sum l g.
Proof. induction l as [|a l IH]; [cbn; algebra|]; rewrite !sum_cons, IH; algebra. Qed.

Lemma sum_minus l f g : Σ (a ∈ l) (f a - g a) = sum l f - sum l g.
Proof. induction l as [|a l IH]; [cbn; algebra|]; rewrite !sum_cons, IH; algebra. Qed.

Lemma sum_times l f (r : R) : r * sum l f = Σ (a ∈ l) r * f a.
Proof. induction l as [|a l IH]; [cbn; algebra|]; rewrite !sum_cons, <- IH; algebra. Qed.

Lemma sum_times_r l f (r : R) : sum l f * r = Σ (a ∈ l) f a * r.
Proof. induction l as [|a l IH]; [cbn; algebra|]; rewrite !sum_cons, <- IH; algebra. Qed.

Lemma sum_filter l (p : X -> bool) f : sum (filter p l) f = Σ (a ∈ l) if p a then f a else 0.
Proof.
  induction l as [|a l IH]; [reflexivity|]; rewrite sum_cons, <- IH; cbn.
  destruct (p a); [apply sum_cons | symmetry; apply Rplus_0_l].
Qed.

Lemma sum_app l l' f : sum (l ++ l') f = sum l f + sum l' f.
Proof. induction l as [|a l IH]; [symmetry; apply Rplus_0_l|]; cbn [app]; rewrite !sum_cons, IH; algebra. Qed.

Lemma sum_map l (h : X -> Y) (f : Y -> R) : sum (map h l) f = Σ (a ∈ l) f (h a).
Proof. induction l as [|a l IH]; [reflexivity|]; cbn [map]; now rewrite sum_cons, <- IH. Qed.

Lemma sum_permutation l l' f : Permutation l l' -> sum l f = sum l' f.
Proof. induction 1; rewrite ?sum_cons; try algebra; congruence. Qed.

Lemma sum_positive l f : (forall a, 0 < f a) -> l <> [] -> 0 < sum l f.
Proof.
  intros H N; destruct l as [|a l]; [easy|]; clear N; rewrite sum_cons.
  assert (0 <= sum l f); [|specialize (H a); lra].
  induction l as [|b l IH]; [cbn; lra|]; rewrite sum_cons; specialize (H b); lra.
Qed.

(** Of a sum in which one place alone counts, that term stays. *)
Lemma sum_pick (same : forall a b : X, {a = b} + {a <> b}) l a f :
  NoDup l -> In a l -> Σ (b ∈ l) (if same a b then f b else 0) = f a.
Proof.
  induction l as [|b l IH]; [easy|]; intros N H; inversion N as [|? ? B NL]; subst; rewrite sum_cons.
  destruct (same a b) as [<-|E].
  - rewrite sum_zero; [algebra|]; intros c C; destruct (same a c) as [<-|]; easy.
  - destruct H as [->|H]; [easy|]; rewrite IH by easy; algebra.
Qed.
End Sums.

Lemma sum_concat_map {X Y} (l : list X) (h : X -> list Y) (f : Y -> R) :
  sum (concat (map h l)) f = Σ (a ∈ l) sum (h a) f.
Proof. induction l as [|a l IH]; [reflexivity|]; cbn [map concat]; now rewrite sum_app, sum_cons, <- IH. Qed.

Lemma sum_swap {X Y} (l : list X) (m : list Y) (f : X -> Y -> R) :
  Σ (a ∈ l) Σ (b ∈ m) f a b = Σ (b ∈ m) Σ (a ∈ l) f a b.
Proof.
  induction l as [|a l IH]; [symmetry; now apply sum_zero|]; rewrite sum_cons, IH, <- sum_plus; reflexivity.
Qed.

(** ** How things move: [is_derive f t df] says that [f] has the derivative [df] at [t] *)

Lemma derive_constant (r t : R) : is_derive (fun _ => r) t 0.
Proof. apply (is_derive_const (V := R_NormedModule)). Qed.

Lemma derive_same (t : R) : is_derive (fun t => t) t 1.
Proof. apply (is_derive_id (K := R_AbsRing)). Qed.

Lemma derive_plus (f g : R -> R) t df dg :
  is_derive f t df -> is_derive g t dg -> is_derive (fun t => f t + g t) t (df + dg).
Proof. exact (fun F G => is_derive_plus f g t df dg F G). Qed.

Lemma derive_minus (f g : R -> R) t df dg :
  is_derive f t df -> is_derive g t dg -> is_derive (fun t => f t - g t) t (df - dg).
Proof. exact (fun F G => is_derive_minus f g t df dg F G). Qed.

Lemma derive_times (f g : R -> R) t df dg :
  is_derive f t df -> is_derive g t dg -> is_derive (fun t => f t * g t) t (df * g t + f t * dg).
Proof. intros F G; apply (is_derive_mult f g t df dg F G Rmult_comm). Qed.

Lemma derive_scaled (r : R) (f : R -> R) t df : is_derive f t df -> is_derive (fun t => r * f t) t (r * df).
Proof. intro F; exact (is_derive_scal f t r df F). Qed.

(** The chain rule. *)
Lemma derive_of (h f : R -> R) t dh df :
  is_derive h (f t) dh -> is_derive f t df -> is_derive (fun t => h (f t)) t (dh * df).
Proof. intros H F; rewrite Rmult_comm; apply (is_derive_comp h f t dh df H F). Qed.

Lemma derive_exp (f : R -> R) t df : is_derive f t df -> is_derive (fun t => exp (f t)) t (exp (f t) * df).
Proof. apply derive_of, is_derive_exp. Qed.

Lemma derive_ln (f : R -> R) t df : 0 < f t -> is_derive f t df -> is_derive (fun t => ln (f t)) t (/ f t * df).
Proof. intro P; apply derive_of, is_derive_Reals, derivable_pt_lim_ln, P. Qed.

Lemma derive_divided (f g : R -> R) t df dg : g t <> 0 ->
  is_derive f t df -> is_derive g t dg -> is_derive (fun t => f t / g t) t ((df * g t - f t * dg) / g t ^ 2).
Proof. intros N F G; apply is_derive_div; easy. Qed.

Lemma derive_sum {X} (l : list X) (f : R -> X -> R) (df : X -> R) t :
  (forall a, In a l -> is_derive (fun t => f t a) t (df a)) -> is_derive (fun t => sum l (f t)) t (sum l df).
Proof.
  induction l as [|a l IH]; intro H; [exact (derive_constant 0 t)|].
  apply (derive_plus (f := fun t => f t a) (g := fun t => sum l (f t))); [apply H; now left|].
  apply IH; intros; apply H; now right.
Qed.

Lemma derive_eq (f : R -> R) t df df' : is_derive f t df -> df = df' -> is_derive f t df'.
Proof. now intros F <-. Qed.

Lemma derive_ext (f g : R -> R) t df : (forall t, f t = g t) -> is_derive f t df -> is_derive g t df.
Proof. intro E; now apply is_derive_ext. Qed.
